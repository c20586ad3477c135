"""Steps of a live worker, read from its timeline while it serves: a calibration under real traffic.

They hold what an engine that is measured alone does not meet: the publisher beside it, and whoever else is on
the machine. Prefix hits are not in the timeline: what was found of a prompt is missing from its context.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from headway.services.hardware import StepWork
from headway.services.step_fit import Measured
from headway.services.trace_file import is_step

POLL_SECONDS: Final = 5.0
"""A worker keeps its last 2,048 steps: at 2 ms a step they last about four seconds, at 20 ms forty."""
LONGEST_PAUSE: Final = 0.3
"""Between two steps, of the first one's time, that belongs to it: planning, text, a thread's turn. After a
longer one the worker had nothing to do."""


@dataclass(slots=True)
class LiveSteps:
    """Collects steps from traces fetched one after another. ``fetch()``: the worker's Chrome trace."""

    fetch: Callable[[], dict[str, Any]]
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    steps: list[Measured] = field(default_factory=list[Measured])
    _seen: int = -1
    _computed: dict[str, int] = field(default_factory=dict[str, int])
    _unknown: set[str] = field(default_factory=set[str])
    """Requests of which a step may have passed unseen: how much context they have is not known."""

    def collect(self, seconds: float, show: Callable[[str], None]) -> dict[str, Any]:
        """Look on for so long; returns what the last trace tells of the worker's settings."""
        until = self.clock() + seconds
        trace = self.fetch()
        for event in step_events(trace):
            self._seen = number_of(event)
            self._unknown.update(event["args"]["computed"])
        while self.clock() < until:
            self.sleep(min(POLL_SECONDS, max(0.0, until - self.clock())))
            trace = self.fetch()
            self._read(trace)
            show(f"{len(self.steps)} steps seen")
        facts: dict[str, Any] = trace.get("otherData", {})
        return facts

    def _read(self, trace: dict[str, Any]) -> None:
        events = [event for event in step_events(trace) if number_of(event) > self._seen]
        if not events:
            return
        if self._seen >= 0 and number_of(events[0]) > self._seen + 1:
            # Steps were pushed out before they were seen.
            self._unknown.update(self._computed, events[0]["args"]["computed"])
        for event, following in zip(events, [*events[1:], None], strict=True):
            self._step(event, following)
        self._seen = number_of(events[-1])

    def _step(self, event: dict[str, Any], following: dict[str, Any] | None) -> None:
        computed: dict[str, int] = event["args"]["computed"]
        work = StepWork.after(self._computed, computed.items(), event["args"]["sampled_tokens"])
        if computed and self._unknown.isdisjoint(computed):
            self.steps.append(Measured(work, _seconds(event, following)))


def step_events(trace: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The trace's steps, in order."""
    return (event for event in trace["traceEvents"] if is_step(event) and "computed" in event["args"])


def number_of(event: dict[str, Any]) -> int:
    """A step's number."""
    return int(event["name"].removeprefix("step "))


def _seconds(event: dict[str, Any], following: dict[str, Any] | None) -> float:
    """A step's time with the pause behind it, if it is short enough to be its own."""
    took = event["dur"] / 1e6
    if following is None:
        return float(took)
    whole = (following["ts"] - event["ts"]) / 1e6
    return float(whole if took <= whole <= took * (1 + LONGEST_PAUSE) else took)
