"""Headway's own records of a point: each worker's steps and its requests' phases, on the client's clock.

A worker keeps its last steps and events (``headway trace``); they are fetched when a point is over, so that
nobody is disturbed while it is measured. What was pushed out by then is missing, and said to be:
``from_seconds`` tells from when on steps are whole, and a request whose first event is gone has no phase
``waiting`` at its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headway.services.trace_file import fetch_trace, is_step

MOST_STEPS: Final = 4096
"""Of one point, the last ones."""
FIRST_STEP: Final = "step 1"
"""Of a worker: before it there was none, so nothing is missing."""
_PHASES: Final = ("waiting", "prefill", "decode", "swapped out", "preempted", "resuming")


def fetch_workers(urls: Sequence[str]) -> list[dict[str, Any]]:
    """How each worker is set up. Raises ServiceError where one does not answer."""
    return [dict(fetch_trace(url).get("otherData", {}), url=url) for url in urls]


def fetch_records(urls: Sequence[str], began_unix: float, seconds: float) -> list[dict[str, Any]]:
    """Each worker's records of ``seconds`` from a moment on. Raises ServiceError."""
    return [records(fetch_trace(url), began_unix, seconds) for url in urls]


def records(trace: dict[str, Any], began_unix: float, seconds: float) -> dict[str, Any]:
    """One worker's, in seconds since the point began.

    ``steps``: [start, seconds, requests, tokens, waiting, KV blocks]; ``from_seconds``: all of them from then
    on, None where there is none at all. ``phases`` by job: [phase, start, end].
    Clocks of two machines are compared by their time of day: records of another host are as exact as that.
    """
    told = trace.get("otherData", {})
    shift = told.get("unix_seconds", 0.0) - told.get("clock_seconds", 0.0) - began_unix
    names: dict[tuple[int, int], str] = {}
    counters: dict[float, dict[str, int]] = {}
    steps: list[list[float]] = []
    phases: dict[str, list[list[Any]]] = {}
    earliest: tuple[float, str] | None = None
    for event in trace["traceEvents"]:
        kind, place = event["ph"], (event["pid"], event["tid"])
        if kind == "M" and event["name"] == "thread_name":
            names[place] = _job(event["args"]["name"])
        elif kind == "C":
            counters.setdefault(event["ts"], {})[event["name"]] = event["args"]["value"]
        elif kind == "X":
            start = event["ts"] / 1e6 + shift
            end = start + event["dur"] / 1e6
            if is_step(event):
                begun = (start, event["name"])
                earliest = begun if earliest is None else min(earliest, begun)
            if end < 0.0 or start > seconds:
                continue
            if is_step(event):
                counted = counters.setdefault(event["ts"], {})
                steps.append(
                    [event["ts"], start, end - start, event["args"]["requests"], _tokens(counted, event)]
                )
            elif event["name"] in _PHASES and place in names:
                phases.setdefault(names[place], []).append([event["name"], _rounded(start), _rounded(end)])
    return {
        "settings": told.get("settings", {}),
        "kv_blocks": told.get("kv_blocks"),
        "from_seconds": _whole_from(earliest, steps),
        "steps": [_step(step, counters.get(step[0], {})) for step in steps[-MOST_STEPS:]],
        "phases": phases,
    }


def missing_steps(record: Mapping[str, Any], measured_from: float) -> str | None:
    """What of the measured time is not told, in words; None: nothing."""
    since = record["from_seconds"]
    if since is None or since <= measured_from:
        return None
    return f"the worker's steps are known from {since:.1f} s on: it keeps its last ones only"


def _whole_from(earliest: tuple[float, str] | None, steps: Sequence[Sequence[float]]) -> float | None:
    """``earliest``: start and name of the first step that the worker still has, whenever that was."""
    if earliest is None:
        return None
    if len(steps) > MOST_STEPS:
        return _rounded(max(0.0, steps[-MOST_STEPS][1]))
    start, name = earliest
    return 0.0 if name == FIRST_STEP else _rounded(max(0.0, start))


def _tokens(counted: dict[str, int], event: dict[str, Any]) -> int:
    tokens: int = counted["new tokens"] if "new tokens" in counted else event["args"].get("new_tokens", 0)
    return tokens


def _step(step: list[float], counted: dict[str, int]) -> list[float]:
    _, start, seconds, requests, tokens = step
    waiting, blocks = counted.get("waiting", 0), counted.get("KV blocks used", 0)
    return [_rounded(start), _rounded(seconds), requests, tokens, waiting, blocks]


def _job(track: str) -> str:
    """``<job>#<choice> · <epoch>`` without its choice and epoch."""
    return track.rpartition(" · ")[0].rpartition("#")[0]


def _rounded(seconds: float) -> float:
    return round(seconds, 5)
