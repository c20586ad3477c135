"""What a worker shows of its last steps while somebody watches (``/console``): a compact JSON text.

    at_ms      when it was made, by this worker's clock, milliseconds since the epoch
    blocks     KV blocks of the pool
    skipped    older steps since the view before that are not in it
    steps      [step, started at (ms since the epoch), real µs, predicted µs, blocks used, requests that wait]
    requests   [request, epoch, tenant, class, [[first step, steps, tokens, is decode], …]]: alike in a row
    events     [request, epoch, what happened, step, ms since the epoch, detail]

No prompt and no answer is in it. It is made on the I/O loop's thread out of copies of the engine's rings, and
its work is bounded: 48 steps, whatever happened meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from headway.engine.timeline import Happening, RequestEvent, StepEvent, Timeline
from headway.engine.values import RequestKey

MOST_STEPS: Final = 48
"""Of one view: at 2.5 views a second more than 100 steps a second, beyond what an eye follows."""
MOST_EVENTS: Final = 512
_CLASSES: Final = ("interactive", "standard", "batch")
_UNSEEN: Final = frozenset({Happening.ARRIVED, Happening.PREFILLED})
"""Told by other figures: an arrival by the queue, a prefill's end by the first decode."""


@dataclass(slots=True)
class _Seen:
    """What is known of one live request."""

    tenant: str
    priority: int
    decodes_after: int | None = None
    """The step that ended its prefill; None: not yet, or it computes again."""


@dataclass(slots=True)
class _Row:
    """One request's steps in one view: ``[first step, steps, tokens, is decode]`` each."""

    runs: list[list[int]] = field(default_factory=list[list[int]])

    def add(self, step: int, tokens: int, *, is_decode: bool, follows: int) -> None:
        """Lengthen the last run if this step is alike and comes just behind it, after step ``follows``."""
        if self.runs:
            last = self.runs[-1]
            if last[0] + last[1] - 1 == follows and last[2] == tokens and last[3] == is_decode:
                last[1] += step - follows
                return
        self.runs.append([step, 1, tokens, int(is_decode)])


class StepViewer:
    """Makes one view after the other of an engine's timeline; ``clock`` is the engine's."""

    def __init__(self, timeline: Timeline, clock: Callable[[], float]) -> None:
        self._timeline = timeline
        self._clock = clock
        self._last_step = 0
        self._last_event: RequestEvent | None = None
        self._seen: dict[RequestKey, _Seen] = {}

    def forget(self) -> None:
        """Begin afresh: nobody has watched for a while."""
        self._seen.clear()
        self._last_event = None

    def view(self, blocks: int) -> bytes | None:
        """What happened since the last view; None: nothing."""
        wall_ms = (time.time() - self._clock()) * 1000
        events = self._new_events()
        self._learn(events)
        steps, skipped = self._new_steps()
        shown = [event for event in events[-MOST_EVENTS:] if event.happening not in _UNSEEN]
        text = None
        if steps or shown:
            text = orjson.dumps(
                {
                    "at_ms": round(time.time() * 1000),
                    "blocks": blocks,
                    "skipped": skipped,
                    "steps": [_step(step, wall_ms) for step in steps],
                    "requests": self._requests(steps),
                    "events": [_event(event, wall_ms) for event in shown],
                }
            )
        for event in events:
            if event.happening is Happening.FINISHED:
                self._seen.pop(event.key, None)
        return text

    def _new_events(self) -> list[RequestEvent]:
        """Those since the last view, in their order; all that are kept when this is the first."""
        kept = tuple(self._timeline.events)
        fresh: list[RequestEvent] = []
        for event in reversed(kept):
            if event is self._last_event:
                break
            fresh.append(event)
        if kept:
            self._last_event = kept[-1]
        return fresh[::-1]

    def _learn(self, events: Iterable[RequestEvent]) -> None:
        for event in events:
            seen = self._seen.setdefault(event.key, _Seen(event.tenant, event.priority))
            if event.happening is Happening.PREFILLED:
                seen.decodes_after = event.step
            elif event.happening is Happening.RECOMPUTED:
                seen.decodes_after = None

    def _new_steps(self) -> tuple[Sequence[StepEvent], int]:
        """The newest of the steps since the last view, and how many older ones are left out."""
        fresh: list[StepEvent] = []
        for step in reversed(tuple(self._timeline.steps)):
            if step.step <= self._last_step or len(fresh) == MOST_STEPS:
                break
            fresh.append(step)
        if not fresh:
            return (), 0
        fresh.reverse()
        skipped = fresh[0].step - self._last_step - 1 if self._last_step else 0
        self._last_step = fresh[-1].step
        return fresh, skipped

    def _requests(self, steps: Sequence[StepEvent]) -> list[list[Any]]:
        rows: dict[RequestKey, _Row] = {}
        before = 0
        for step in steps:
            for key, tokens, samples in zip(step.keys, step.tokens, step.samples, strict=True):
                row = rows.get(key)
                if row is None:
                    row = rows[key] = _Row()
                seen = self._seen.get(key)
                after = None if seen is None else seen.decodes_after
                is_decode = (samples == 1 and tokens == 1) or (after is not None and step.step > after)
                row.add(step.step, tokens, is_decode=is_decode, follows=before)
            before = step.step
        return [[*self._name(key), row.runs] for key, row in rows.items()]

    def _name(self, key: RequestKey) -> tuple[str, int, str, str]:
        seen = self._seen.get(key)
        if seen is None:
            return key.request_id, key.epoch, "", ""
        return key.request_id, key.epoch, seen.tenant, _CLASSES[min(seen.priority, len(_CLASSES) - 1)]


def _step(step: StepEvent, wall_ms: float) -> tuple[int, int, int, int, int, int]:
    return (
        step.step,
        round(step.started_at * 1000 + wall_ms),
        round(step.real_seconds * 1e6),
        round(step.predicted_seconds * 1e6),
        step.kv_blocks_used,
        step.waiting,
    )


def _event(event: RequestEvent, wall_ms: float) -> tuple[str, int, str, int, int, str]:
    at_ms = round(event.seconds * 1000 + wall_ms)
    name, epoch = event.key
    return name, epoch, event.happening.value, event.step, at_ms, event.detail
