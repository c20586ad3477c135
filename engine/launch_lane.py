"""The engine's side of a runner that can launch: its device has the next plan before the last one is told.

    engine   launch N+1 · wait for N ─► apply N, text of N, plan N+2 ─► launch N+2 · wait for N+1 ─►
    device   ═════ N ═════╪═══════════════ N+1 ═══════════════╪═════════════ N+2 ══════

Launching takes no thread of its own, and between N and N+1 the device waits for nobody.
"""

from __future__ import annotations

from collections import deque

from headway.engine.interfaces import LaunchingRunner
from headway.engine.values import StepPlan, StepResult


class LaunchLane:
    """Plans in the order they are given; each ``start`` is followed by one ``wait``, the next one's may come
    between.

    After a plan whose launch failed nothing is launched until that failure has been raised: what was planned
    behind it relies on it.
    """

    starts_early = True
    """A plan ahead is started before its predecessor is waited for."""

    def __init__(self, runner: LaunchingRunner) -> None:
        self._runner = runner
        self._failures: deque[Exception | None] = deque()
        """One per plan under way: why it was not launched."""

    def start(self, plan: StepPlan) -> None:
        """Launch a plan."""
        failure = next((failure for failure in self._failures if failure is not None), None)
        if failure is None:
            try:
                self._runner.launch(plan)
            except Exception as error:  # raised again where it is waited for
                failure = error
        self._failures.append(failure)

    def wait(self) -> StepResult:
        """The result of the plan that was started first; raises what kept it from running."""
        failure = self._failures.popleft()
        if failure is not None:
            self._failures.clear()
            raise failure
        try:
            return self._runner.collect()
        except Exception:
            self._failures.clear()  # the plan behind it is thrown away
            raise

    def execute(self, plan: StepPlan) -> StepResult:
        """Run a plan to its end, and forget what was started."""
        self._failures.clear()
        return self._runner.execute(plan)

    def close(self) -> None:
        """Nothing to end: what is under way ends by itself."""
