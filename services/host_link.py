"""Copies between a simulated device and its host: in order, both ways at once, beside the steps or not."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Final

from headway.engine.values import BlockCopy, CopyTime, StepPlan

COPY_RUN_SECONDS: Final = 10e-6
"""Fixed cost of one asynchronous copy: a launch and its place in the queue."""


class HostLink:
    """One full-duplex link. ``seconds_per_run``: the fixed cost of copying one run of neighbouring slots."""

    def __init__(
        self,
        block_bytes: float,
        bytes_per_second: float,
        seconds_per_run: float = COPY_RUN_SECONDS,
        *,
        is_beside: bool = True,
    ) -> None:
        self.is_beside = is_beside
        """Whether it copies while the device computes; else a step waits for what it copies."""
        self._seconds_per_block = block_bytes / bytes_per_second
        self._seconds_per_run = seconds_per_run
        self._out_free = 0.0
        self._in_free = 0.0
        self._under_way: deque[tuple[int, float, list[CopyTime]]] = deque()
        """(step, when its copies are complete, how long each direction takes), in order."""
        self._times: list[CopyTime] = []
        self.busy_seconds = 0.0
        """Of both directions together."""

    def send(self, plan: StepPlan, now: float) -> None:
        """Start a plan's swaps; those of earlier plans go first."""
        if not plan.swaps_out and not plan.swaps_in:
            return
        times: list[CopyTime] = []
        if plan.swaps_out:
            times.append(self._time(plan.step, plan.swaps_out, is_out=True))
            self._out_free = max(self._out_free, now) + times[-1].seconds
        if plan.swaps_in:
            times.append(self._time(plan.step, plan.swaps_in, is_out=False))
            self._in_free = max(self._in_free, now) + times[-1].seconds
        self.busy_seconds += sum(time.seconds for time in times)
        self._under_way.append((plan.step, max(now, self.free_at), times))

    @property
    def free_at(self) -> float:
        """When everything that was sent is complete."""
        return max(self._out_free, self._in_free)

    def copied_step(self, now: float) -> int | None:
        """The last step whose swaps are complete, all before it included; None: nothing is under way."""
        while self._under_way and self._under_way[0][1] <= now:
            self._times += self._under_way.popleft()[2]
        return self._under_way[0][0] - 1 if self._under_way else None

    def take_times(self) -> tuple[CopyTime, ...]:
        """How long the swaps took that were found complete since the last call."""
        times, self._times = tuple(self._times), []
        return times

    def _time(self, step: int, copies: tuple[BlockCopy, ...], *, is_out: bool) -> CopyTime:
        slots = [copy.target if is_out else copy.source for copy in copies]
        runs = 1 + sum(slot + 1 != after for slot, after in pairwise(slots))
        seconds = len(copies) * self._seconds_per_block + runs * self._seconds_per_run
        return CopyTime(step, is_out, len(copies), seconds, self.is_beside)
