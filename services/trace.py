"""A timeline as a Chrome trace: open it in Perfetto (ui.perfetto.dev) or chrome://tracing.

    process  engine      one slice per step; counters: KV blocks used, requests that wait, tokens computed
    process  a tenant    one track per request: waiting, prefill, decode, preempted; an instant per token

Format: Chrome's "Trace Event Format", JSON object form; times in microseconds. No prompt or answer is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway.engine.timeline import Happening, RequestEvent, StepEvent, Timeline
from headway.engine.values import RequestKey

TraceEvent = dict[str, Any]

_PHASES: Final = {
    Happening.ARRIVED: "waiting",
    Happening.ADMITTED: "waiting",
    Happening.STARTED: "prefill",
    Happening.PREFILLED: "decode",
    Happening.SWAPPED: "swapped out",
    Happening.RECOMPUTED: "preempted",
    Happening.RESUMED: "resuming",
}
"""What a request does from this event to its next."""


@dataclass(frozen=True, slots=True)
class _Track:
    """Where a request is drawn."""

    process: int
    thread: int


def chrome_trace(timelines: Sequence[tuple[str, Timeline]]) -> dict[str, Any]:
    """One trace of one or more engines, each with a name; may be called beside a running engine."""
    events: list[TraceEvent] = []
    process = 1
    for name, timeline in timelines:
        drawn, process = _draw(name, tuple(timeline.steps), tuple(timeline.events), process)
        events += drawn
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _draw(
    name: str, steps: Sequence[StepEvent], events: Sequence[RequestEvent], process: int
) -> tuple[list[TraceEvent], int]:
    """One engine's events, and the first process number that is free after it."""
    by_request: dict[RequestKey, list[RequestEvent]] = {}
    for event in events:
        by_request.setdefault(event.key, []).append(event)
    tenants = sorted({event.tenant for event in events})
    processes = {tenant: process + 1 + place for place, tenant in enumerate(tenants)}
    tracks = {
        key: _Track(processes[happened[0].tenant], thread)
        for thread, (key, happened) in enumerate(by_request.items(), start=1)
    }
    end = max((step.started_at + step.real_seconds for step in steps), default=0.0)
    end = max([end, *(event.seconds for event in events)])
    drawn = [_name("process_name", f"{name}: steps", process)]
    drawn += [_name("process_name", f"{name}: tenant {tenant}", processes[tenant]) for tenant in tenants]
    for key, track in tracks.items():
        drawn.append(_name("thread_name", f"{key.request_id} · {key.epoch}", track.process, track.thread))
        drawn += _phases(by_request[key], track, end)
    for step in steps:
        drawn += _step(step, process)
        drawn += _tokens(step, tracks)
    return drawn, process + 1 + len(tenants)


def _name(kind: str, name: str, process: int, thread: int = 0) -> TraceEvent:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _slice(name: str, process: int, thread: int, *, start: float, end: float, args: TraceEvent) -> TraceEvent:
    microseconds = {"ts": round(start * 1e6, 1), "dur": round(max(0.0, end - start) * 1e6, 1)}
    return {"ph": "X", "name": name, "pid": process, "tid": thread, **microseconds, "args": args}


def _phases(happened: Iterable[RequestEvent], track: _Track, end: float) -> Iterator[TraceEvent]:
    """What one request did when; one that goes on is drawn to the end of the trace."""
    ordered = sorted(happened, key=lambda event: event.seconds)
    stops = [event.seconds for event in ordered[1:]] + [end]
    for event, stop in zip(ordered, stops, strict=True):
        args = {"step": event.step, "class": event.priority, "detail": event.detail}
        if event.happening is Happening.FINISHED:
            moment = {"ts": round(event.seconds * 1e6, 1), "s": "t", "args": args}
            yield {
                "ph": "i",
                "name": f"finished: {event.detail}",
                "pid": track.process,
                "tid": track.thread,
            } | moment
        else:
            name = _PHASES[event.happening]
            yield _slice(name, track.process, track.thread, start=event.seconds, end=stop, args=args)


def _step(step: StepEvent, process: int) -> Iterator[TraceEvent]:
    args = {
        "requests": len(step.keys),
        "new_tokens": sum(step.tokens),
        "sampled_tokens": sum(step.samples),
        "predicted_ms": round(step.predicted_seconds * 1e3, 3),
        "real_ms": round(step.real_seconds * 1e3, 3),
        "computed": {key.request_id: tokens for key, tokens in zip(step.keys, step.tokens, strict=True)},
    }
    end = step.started_at + step.real_seconds
    yield _slice(f"step {step.step}", process, 1, start=step.started_at, end=end, args=args)
    counters = {
        "KV blocks used": step.kv_blocks_used,
        "waiting": step.waiting,
        "new tokens": sum(step.tokens),
    }
    for name, value in counters.items():
        at = {"ts": round(step.started_at * 1e6, 1), "args": {"value": value}}
        yield {"ph": "C", "name": name, "pid": process, "tid": 0} | at


def _tokens(step: StepEvent, tracks: dict[RequestKey, _Track]) -> Iterator[TraceEvent]:
    """An instant for each token that the step brought."""
    at = round((step.started_at + step.real_seconds) * 1e6, 1)
    for key, samples in zip(step.keys, step.samples, strict=True):
        track = tracks.get(key)
        if samples and track is not None:
            place = {"pid": track.process, "tid": track.thread, "ts": at, "s": "t"}
            yield {"ph": "i", "name": "token", "args": {"step": step.step}} | place
