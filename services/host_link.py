"""Copies between a simulated device and its host: beside the computation, in order, both ways at once."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Final

from headway.engine.values import BlockCopy, StepPlan

COPY_RUN_SECONDS: Final = 10e-6
"""Fixed cost of one asynchronous copy: a launch and its place in the queue."""


class HostLink:
    """One full-duplex link. ``seconds_per_run``: the fixed cost of copying one run of neighbouring blocks."""

    def __init__(
        self, block_bytes: float, bytes_per_second: float, seconds_per_run: float = COPY_RUN_SECONDS
    ) -> None:
        self._seconds_per_block = block_bytes / bytes_per_second
        self._seconds_per_run = seconds_per_run
        self._out_free = 0.0
        self._in_free = 0.0
        self._under_way: deque[tuple[int, float]] = deque()
        """(step, when its copies are complete), in order."""
        self.busy_seconds = 0.0
        """Of both directions together."""

    def send(self, plan: StepPlan, now: float) -> None:
        """Start a plan's swaps; those of earlier plans go first."""
        if not plan.swaps_out and not plan.swaps_in:
            return
        out = self._seconds(plan.swaps_out)
        into = self._seconds(plan.swaps_in)
        self.busy_seconds += out + into
        if plan.swaps_out:
            self._out_free = max(self._out_free, now) + out
        if plan.swaps_in:
            self._in_free = max(self._in_free, now) + into
        self._under_way.append((plan.step, max(now, self.free_at)))

    @property
    def free_at(self) -> float:
        """When everything that was sent is complete."""
        return max(self._out_free, self._in_free)

    def copied_step(self, now: float) -> int | None:
        """The last step whose swaps are complete, all before it included; None: nothing is under way."""
        while self._under_way and self._under_way[0][1] <= now:
            self._under_way.popleft()
        return self._under_way[0][0] - 1 if self._under_way else None

    def _seconds(self, copies: tuple[BlockCopy, ...]) -> float:
        if not copies:
            return 0.0
        runs = 1 + sum(
            (earlier.source + 1, earlier.target + 1) != (later.source, later.target)
            for earlier, later in pairwise(copies)
        )
        return len(copies) * self._seconds_per_block + runs * self._seconds_per_run
