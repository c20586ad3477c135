"""The engine: one synchronous loop body that turns requests into outputs, step by step."""

from __future__ import annotations

from collections.abc import Callable

from headway.engine.checks import check_request
from headway.engine.cost_model import CostModel
from headway.engine.errors import InvariantError
from headway.engine.interfaces import LaunchingRunner, Runner, Tokenizer
from headway.engine.isolation import Isolated, execute_isolated
from headway.engine.launch_lane import LaunchLane
from headway.engine.limits import StepLimits
from headway.engine.memory_settings import MemorySettings
from headway.engine.policy import Policy
from headway.engine.runner_thread import RunnerThread
from headway.engine.scheduler import Scheduler
from headway.engine.step_profile import DETOKENIZE, SCHEDULING, StepProfile
from headway.engine.timeline import Timeline
from headway.engine.transcript import Transcript
from headway.engine.values import (
    Emission,
    EngineLoad,
    FinishReason,
    Output,
    RequestSpec,
    StepPlan,
    StepResult,
)


class Engine:
    """Continuous batching over one runner. Single-threaded; the caller owns thread, clock and the waiting.

    ``looks_ahead``: while a step runs the next one is planned, and launched if the runner can; any other
    runner gets a thread of its own, which ``close`` ends. ``clock``: for ``profile``; None: it counts steps
    and tokens only. ``max_draft_tokens``: most tokens guessed of a request in one step; 0: none ever.

    Every request that ``add`` accepts gets exactly one output with a ``finish_reason``, and nothing after it
    (but one that a newer epoch replaces: its owner lost it and hears nothing more).
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        *,
        limits: StepLimits,
        policy: Policy,
        memory: MemorySettings | None = None,
        looks_ahead: bool = False,
        max_draft_tokens: int = 0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._runner = runner
        self._lane = _lane(runner) if looks_ahead else None
        """Where plans run while the engine goes on; None: nowhere."""
        self._under_way: StepPlan | None = None
        """The plan that the lane executes between two calls of ``step``."""
        self._tokenizer = tokenizer
        self._eos_token_ids = runner.eos_token_ids | tokenizer.eos_token_ids
        cost = CostModel()
        settings = memory or MemorySettings(is_overcommitted=limits.is_overcommitted)
        built = settings.build(runner, cost)
        self.preemptions = built.giving_way.detours.happened
        """Who gave way lately and who is back; readers may empty it, from any thread."""
        self._scheduler = Scheduler(
            built.ledger,
            limits,
            policy,
            self._eos_token_ids,
            cost=cost,
            memory=built,
            max_draft_tokens=max_draft_tokens,
        )
        self.limits = limits
        """Those of the start."""
        self._transcripts: dict[str, Transcript] = {}
        self.profile = StepProfile() if clock is None else StepProfile(clock)
        """Where the time went since the start."""

    def check(self, spec: RequestSpec) -> None:
        """Raise RequestError for a request that can never run here; changes nothing."""
        check_request(spec, self._runner)

    def add(self, spec: RequestSpec, now: float | None = None) -> None:
        """Check a request and let it wait.

        With ``now`` one that cannot end before its deadline by prediction is refused with DeadlineError, or
        runs at best effort if it is demotable.

        A live duplicate with the same epoch is refused with RequestError, a newer epoch replaces the older;
        raises EngineFullError when too many wait. A refused request leaves nothing behind.
        """
        self.check(spec)
        transcript = Transcript(spec, self._tokenizer, self._eos_token_ids)
        self._scheduler.add(spec, ended=FinishReason.STOP if transcript.is_stopped else None, now=now)
        self._transcripts[spec.request_id] = transcript

    def cancel(self, request_id: str, reason: FinishReason) -> None:
        """End a request now; its last output comes from the next step. Unknown ids leave no state."""
        self._scheduler.cancel(request_id, reason)

    def hold(self, request_id: str) -> None:
        """Leave a request out of the steps, with its blocks kept (its reader or Redis is away)."""
        self._scheduler.hold(request_id)

    def unhold(self, request_id: str) -> None:
        """Let a held request go on."""
        self._scheduler.unhold(request_id)

    def set_weight(self, tenant: str, weight: float) -> None:
        """A tenant's share from now on, of service and of the cache; ValueError unless above 0 and finite."""
        self._scheduler.set_weight(tenant, weight)

    def set_limits(self, limits: StepLimits) -> None:
        """Other caps from the next step on; see ``Scheduler.set_limits``."""
        self._scheduler.set_limits(limits)

    def set_priority(self, request_id: str, priority: int) -> None:
        """Move a live request to another class. Unknown ids leave no state."""
        self._scheduler.set_priority(request_id, priority)

    def step(self, now: float) -> tuple[Output, ...]:
        """Run one iteration and say what it brought; also ends requests past their deadline.

        Raises what the runner raised when no request of the step could be computed: the device is broken.
        """
        self.profile.begin()
        plan = self._under_way or self._start(self._scheduler.plan(now))
        self._under_way = None
        if plan is None:
            self.profile.lap(SCHEDULING)
            return ()
        ahead = None if self._lane is None else self._scheduler.plan_ahead(plan, now)
        self.profile.lap(SCHEDULING)
        result = self._finish(plan, ahead)
        if plan.needs_runner:
            self.profile.computed(result)
        emissions = self._scheduler.apply(plan, result, now)
        self.profile.lap(SCHEDULING)
        # A stop string may end a request before the last of the tokens that one step brought it.
        outputs = tuple(
            [self._read(emission) for emission in emissions if emission.key.request_id in self._transcripts]
        )
        self.profile.lap(DETOKENIZE)
        return outputs

    def close(self) -> None:
        """Wait for the step under way, and step no more."""
        if self._lane is not None:
            self._lane.close()

    @property
    def timeline(self) -> Timeline:
        """What happened lately."""
        return self._scheduler.timeline

    @property
    def has_work(self) -> bool:
        """Whether any request is live or has its end still to be told, or a step is under way."""
        return self._under_way is not None or self._scheduler.has_work

    @property
    def has_runnable(self) -> bool:
        """Whether a step now may do something. False until a call, or ``next_deadline``, changes that."""
        return self._under_way is not None or self._scheduler.has_runnable

    @property
    def next_deadline(self) -> float | None:
        """When a step is due even if nothing is runnable: a deadline, or a batch that waited enough."""
        return self._scheduler.next_deadline

    @property
    def load(self) -> EngineLoad:
        """The state between two steps."""
        return self._scheduler.load

    def check_books(self) -> None:
        """Recount everything from scratch, when idle and in tests; raises InvariantError on a difference."""
        self._scheduler.check()
        if len(self._transcripts) != self._scheduler.requests:
            raise InvariantError(
                f"{len(self._transcripts)} transcripts for {self._scheduler.requests} requests"
            )

    def _start(self, plan: StepPlan | None) -> StepPlan | None:
        if self._lane is not None and plan is not None and plan.needs_runner:
            self._lane.start(plan)
        return plan

    def _finish(self, plan: StepPlan, ahead: StepPlan | None) -> StepResult:
        """The plan's result; the plan behind it starts at once, or never if this one failed."""
        if not plan.needs_runner:
            return StepResult(plan.step, (), 0.0)
        starts_early = self._lane is not None and self._lane.starts_early
        try:
            if starts_early:
                self._start(ahead)
            result = self._runner.execute(plan) if self._lane is None else self._lane.wait()
        except Exception as error:
            execute = self._runner.execute if self._lane is None else self._lane.execute
            isolated = execute_isolated(execute, plan, self._scheduler.announce, error)
            self._end_failed(isolated)
            if ahead is not None:
                self._scheduler.drop(ahead)
            return isolated.result
        self._under_way = ahead if starts_early else self._start(ahead)
        return result

    def _end_failed(self, isolated: Isolated) -> None:
        for key, message in isolated.failures.items():
            self._transcripts[key.request_id].error_message = message
            self._scheduler.cancel(key.request_id, FinishReason.ERROR)

    def _read(self, emission: Emission) -> Output:
        output = self._transcripts[emission.key.request_id].read(emission)
        if output.finish_reason is not None:
            del self._transcripts[emission.key.request_id]
            if emission.finish_reason is None:
                self._scheduler.finish(emission.key)
        return output


def _lane(runner: Runner) -> LaunchLane | RunnerThread:
    return LaunchLane(runner) if isinstance(runner, LaunchingRunner) else RunnerThread(runner)
