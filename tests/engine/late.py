"""Stand-ins for the runner's thread that run at a moment a test can choose: nothing depends on luck."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.engine.asking import TOKENIZER

from headway.engine.engine import Engine
from headway.engine.interfaces import LaunchingRunner, Runner
from headway.engine.launch_lane import LaunchLane
from headway.engine.limits import StepLimits
from headway.engine.memory_settings import MemorySettings
from headway.engine.policy import Fcfs, Policy
from headway.engine.scripted import ScriptedRunner
from headway.engine.values import StepPlan, StepResult


class Late:
    """The device comes to a plan only when its result is waited for."""

    starts_early = False

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.plan: StepPlan | None = None

    def start(self, plan: StepPlan) -> None:
        assert self.plan is None
        self.plan = plan

    def wait(self) -> StepResult:
        assert self.plan is not None
        plan, self.plan = self.plan, None
        return self.runner.execute(plan)

    def execute(self, plan: StepPlan) -> StepResult:
        self.start(plan)
        return self.wait()

    def close(self) -> None:
        self.plan = None


class Early(Late):
    """The device is done with a plan as soon as it gets it; its result is waited for later."""

    def start(self, plan: StepPlan) -> None:
        super().start(plan)
        self.outcome: StepResult | Exception
        try:
            self.outcome = self.runner.execute(plan)
        except Exception as error:
            self.outcome = error

    def wait(self) -> StepResult:
        assert self.plan is not None
        self.plan = None
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class Launched(Late):
    """The device gets a plan before anybody has waited for the one before, and is done with it at once."""

    starts_early = True

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        self.lane = LaunchLane(cast(LaunchingRunner, Launching(runner)))

    def start(self, plan: StepPlan) -> None:
        self.lane.start(plan)

    def wait(self) -> StepResult:
        return self.lane.wait()

    def execute(self, plan: StepPlan) -> StepResult:
        return self.lane.execute(plan)


class Launching:
    """The toy model as a ``LaunchingRunner``."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.results: deque[StepResult] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def launch(self, plan: StepPlan) -> None:
        assert len(self.results) < 2, "two steps are under way at most"
        self.results.append(self.runner.execute(plan))

    def collect(self) -> StepResult:
        return self.results.popleft()

    def execute(self, plan: StepPlan) -> StepResult:
        self.results.clear()
        return self.runner.execute(plan)


def ahead_engine(
    runner: ScriptedRunner | None = None,
    limits: StepLimits | None = None,
    *,
    policy: Policy | None = None,
    memory: MemorySettings | None = None,
    thread: Callable[[Runner], Late] = Late,
) -> Engine:
    """An engine that looks ahead, over a device that is late or early."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headway.engine.engine.RunnerThread", thread)
        return Engine(
            runner or ScriptedRunner(),
            TOKENIZER,
            limits=limits or StepLimits(),
            policy=policy or Fcfs(),
            memory=memory,
            looks_ahead=True,
        )


def recorded(runner: ScriptedRunner) -> list[StepPlan]:
    """Every plan that it executes from now on."""
    runner.steps = []
    return runner.steps


def discarded(engine: Engine) -> float:
    """Tokens computed for nothing."""
    return engine.load.extra["discarded_tokens"]
