"""A thread that executes plans, so that the next one is made, and the last one told, meanwhile."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from headway.engine.interfaces import Runner
from headway.engine.values import StepPlan, StepResult


class RunnerThread:
    """Executes one plan at a time, in the order they are given; the runner is touched by no other thread.

    Its methods belong to one thread, the engine's: each ``start`` is followed by one ``wait``.
    """

    starts_early = False
    """A plan ahead waits for its predecessor's result: this thread would run it even if that failed."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._plans: SimpleQueue[StepPlan | None] = SimpleQueue()
        self._results: SimpleQueue[StepResult | BaseException] = SimpleQueue()
        # A daemon: a device that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="headway-runner", daemon=True)
        self._thread.start()

    def start(self, plan: StepPlan) -> None:
        """Begin to execute a plan."""
        self._plans.put(plan)

    def wait(self) -> StepResult:
        """The result of the plan that was started; raises what the runner raised."""
        result = self._results.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def execute(self, plan: StepPlan) -> StepResult:
        """Both in one: run a plan to its end, on the runner's thread all the same."""
        self.start(plan)
        return self.wait()

    def close(self) -> None:
        """End the thread after the plan that it executes, whose result nobody wants any more."""
        self._plans.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (plan := self._plans.get()) is not None:
            try:
                self._results.put(self._runner.execute(plan))
            except BaseException as error:  # raised again where it is waited for
                self._results.put(error)
