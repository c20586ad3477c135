"""The scheduler as its engine sees it: requests come, change and go, steps are planned and applied."""

from __future__ import annotations

import math
from dataclasses import replace

from headway.engine.blocks import BlockLedger
from headway.engine.cost_model import CostModel
from headway.engine.deadlines import refuse_unreachable
from headway.engine.errors import EngineFullError, RequestError
from headway.engine.flights import Flights
from headway.engine.forecast import Forecast
from headway.engine.limits import StepLimits
from headway.engine.memory import Memory
from headway.engine.planner import Planner
from headway.engine.policy import Policy
from headway.engine.request import Request, end_by_token
from headway.engine.roster import Roster
from headway.engine.speculation import Speculation
from headway.engine.steps import Steps
from headway.engine.timeline import Timeline
from headway.engine.values import (
    Admitted,
    Emission,
    EngineLoad,
    FinishReason,
    RequestKey,
    RequestSpec,
    StepPlan,
    StepResult,
)


class Scheduler:
    """Decides each step. Single-threaded, reads no clock, draws no random number: same calls, same plans.

    ``memory``: a host pool and what copies cost; None: nothing is swapped. ``max_draft_tokens``: most tokens
    guessed of a request in one step (255 at most); 0: none ever.
    """

    def __init__(
        self,
        ledger: BlockLedger,
        limits: StepLimits,
        policy: Policy,
        eos_token_ids: frozenset[int],
        *,
        cost: CostModel | None = None,
        memory: Memory | None = None,
        max_draft_tokens: int = 0,
    ) -> None:
        self._limits = limits
        self._policy = policy
        self._eos_token_ids = eos_token_ids
        self._cost = cost or CostModel()
        self._memory = memory or Memory(ledger, self._cost, is_overcommitted=limits.is_overcommitted)
        self.timeline = Timeline()
        self._roster = Roster(self._memory, policy, self.timeline)
        self._planner = Planner(self._roster, policy, self._memory, limits, self._cost)
        self._forecast = Forecast(self._cost, policy, self._memory, limits.max_step_tokens)
        self._flights = Flights(self._cost, self._forecast, policy, self._memory, self.timeline)
        self._speculation = (
            Speculation(self._memory, self._cost, max_draft_tokens=max_draft_tokens)
            if max_draft_tokens
            else None
        )
        self._steps = Steps(
            self._roster,
            self._planner,
            self._flights,
            self._memory,
            eos_token_ids,
            speculation=self._speculation,
        )
        self._serial = 0

    # -- Requests come, pause and go -------------------------------------------------------------------------

    def add(self, spec: RequestSpec, ended: FinishReason | None = None, *, now: float | None = None) -> None:
        """Let a checked request wait. ``ended``: nothing is left to compute, only the end is to be told.

        A newer epoch replaces a live older one, whose owner gets nothing more. Raises RequestError for the
        same or an older epoch, EngineFullError when too many wait, and where ``now`` is given DeadlineError
        for one that cannot end before its deadline by prediction; a demotable one runs without it instead.
        """
        self._roster.refuse_duplicate(spec)
        if self._roster.waiting >= self._limits.max_waiting:
            raise EngineFullError(
                f"{self._roster.waiting} requests wait, as many as max_waiting allows: try later or elsewhere"
            )
        self._serial += 1
        request = Request(spec, self._serial, parent=self._parent(spec))
        ended = ended or self._end_of_resumed(spec)
        if now is not None and ended is None:
            refuse_unreachable(request, now, self._forecast, has_seat=self._has_seat())
            spec = request.spec
        request.aim(self._limits.objective_of(spec))
        self._roster.enter(request, self._steps.now if now is None else now, self._steps.planned)
        if ended is not None:
            self._roster.end(request, ended, self._steps.now, self._steps.planned)

    def cancel(self, request_id: str, reason: FinishReason) -> None:
        """End a request now; the next apply emits its last output. Unknown ids leave no state."""
        request = self._roster.named(request_id)
        if request is not None:
            self._roster.end(request, reason, self._steps.now, self._steps.planned)

    def finish(self, key: RequestKey) -> None:
        """End a request whose last output the caller has already (a stop string in its text)."""
        request = self._roster.find(key)
        if request is not None:
            self._steps.finish(request, FinishReason.STOP)

    def hold(self, request_id: str) -> None:
        """Keep its blocks but do not schedule it until ``unhold``. Unknown ids leave no state."""
        request = self._roster.named(request_id)
        if request is not None:
            self._roster.hold(request)

    def unhold(self, request_id: str) -> None:
        """Schedule it again, in its old place."""
        request = self._roster.named(request_id)
        if request is not None:
            self._roster.unhold(request)

    # -- What may change while requests run ------------------------------------------------------------------

    def set_limits(self, limits: StepLimits) -> None:
        """Other caps from the next step on; what runs beyond them goes on, in turns.

        ``objectives`` are for who comes, or changes its class, from now on; ``is_overcommitted`` stays as it
        was at the start.
        """
        self._limits = self._planner.limits = limits
        self._forecast.max_step_tokens = limits.max_step_tokens

    def set_weight(self, tenant: str, weight: float) -> None:
        """A tenant's share from now on, of service and of the cache; ValueError unless above 0 and finite."""
        if not 0.0 < weight < math.inf:
            raise ValueError(f"the weight of tenant {tenant!r} is {weight}: give a number above 0")
        self._policy.set_weight(tenant, weight)
        self._memory.ledger.cache.set_weight(tenant, weight)

    def set_priority(self, request_id: str, priority: int) -> None:
        """Move a live request to another class, with what it has computed. Unknown ids leave no state.

        Its tokens are due by the new class's objective, unless it brought one of its own.
        """
        request = self._roster.named(request_id)
        if request is not None and request.spec.priority != priority:
            self._steps.move(request, replace(request.spec, priority=priority))

    # -- One step --------------------------------------------------------------------------------------------

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None when there is nothing to compute and nothing to tell."""
        return self._steps.plan(now)

    def plan_ahead(self, after: StepPlan, now: float) -> StepPlan | None:
        """The step behind ``after``, which is under way; None: it depends on the result of that one."""
        return self._steps.plan_ahead(after, now)

    def drop(self, plan: StepPlan) -> None:
        """A plan ahead will never be executed: the one before it failed, and is still to be applied."""
        self._steps.drop(plan)

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> tuple[Emission, ...]:
        """Commit a step's result and say what it brings; what comes too late is dropped."""
        return self._steps.apply(plan, result, now)

    def announce(self, key: RequestKey) -> Admitted | None:
        """What a runner has to know to take a live request up as it stands now."""
        request = self._roster.find(key)
        return None if request is None else request.announcement()

    # -- The state, for metrics and for whoever decides when to step -----------------------------------------

    @property
    def requests(self) -> int:
        """Requests that are live or have their end still to be told."""
        return len(self._roster) + len(self._roster.farewells)

    @property
    def has_work(self) -> bool:
        """Whether any request is live or has its end still to be told."""
        return self.requests > 0

    @property
    def has_runnable(self) -> bool:
        """Whether a step now may do something. False until a call, or ``next_deadline``, changes that."""
        return bool(self._roster.farewells) or (len(self._roster) > 0 and self._roster.has_changed)

    @property
    def next_deadline(self) -> float | None:
        """When a step is due even if nothing is runnable: a deadline, or a batch that waited enough."""
        batch = self._policy.next_due
        if batch is not None and batch <= self._steps.now:
            # It may start, and could not: it waits for room, which no clock brings.
            batch = None
        return min((due for due in (self._roster.next_deadline, batch) if due is not None), default=None)

    @property
    def load(self) -> EngineLoad:
        """Counts between two steps; running, waiting and held requests are disjoint."""
        running = sum(not request.is_held for request in self._roster.running.values())
        waiting = self._policy.waiting
        return EngineLoad(
            running=running,
            waiting=waiting,
            held=len(self._roster) - running - waiting,
            kv_blocks_total=self._memory.ledger.block_count,
            kv_blocks_used=self._memory.ledger.used_blocks,
            steps=self._flights.executed_steps,
            last_step_seconds=self._flights.last_seconds,
            extra={
                **self._memory.load(),
                **({} if self._speculation is None else self._speculation.load()),
                "step_prediction_error": self._cost.error,
                "step_predicted_seconds": self._flights.last_predicted_seconds,
                "discarded_tokens": float(self._steps.discarded_tokens),
            },
        )

    def check(self) -> None:
        """Recount all books from scratch; raises InvariantError on the first difference."""
        self._roster.check()

    def _has_seat(self) -> bool:
        """Whether nobody would have to wait now."""
        return not self._policy.waiting and len(self._roster.running) < self._limits.max_sequences

    def _parent(self, spec: RequestSpec) -> Request | None:
        parent = None if spec.fork_of is None else self._roster.named(spec.fork_of)
        if parent is None:
            return None
        if parent.spec.tenant != spec.tenant or parent.spec.prompt_token_ids != spec.prompt_token_ids:
            raise RequestError(
                f"{spec.request_id} cannot be a fork of {spec.fork_of}, whose tenant or prompt is another: "
                "name a request with the same ones, or none"
            )
        return parent

    def _end_of_resumed(self, spec: RequestSpec) -> FinishReason | None:
        generated = spec.generated_token_ids
        if not generated:
            return None
        return end_by_token(spec, self._eos_token_ids, len(generated) - 1, generated[-1])
