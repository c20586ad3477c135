"""The scheduler: ``plan → execute → apply``, one rule, and books that balance.

Computed catches up with known. ``plan`` decides what one step computes; it ends what is overdue, starts what
fits and lengthens block tables, but a plan that is thrown away loses nothing. ``apply`` alone commits.
"""

from __future__ import annotations

from dataclasses import replace

from headway.engine.blocks import BlockLedger
from headway.engine.cost_model import CostModel
from headway.engine.deadlines import demoted, refuse_unreachable
from headway.engine.errors import EngineFullError, InvariantError, ResultNeededError
from headway.engine.flights import Flights
from headway.engine.forecast import Forecast
from headway.engine.limits import StepLimits
from headway.engine.look_ahead import as_if_landed
from headway.engine.memory import Memory
from headway.engine.planner import Planner
from headway.engine.policy import Policy
from headway.engine.request import Request, end_by_token
from headway.engine.roster import Roster
from headway.engine.timeline import Happening, Timeline
from headway.engine.values import (
    Admitted,
    Chunk,
    Emission,
    EngineLoad,
    FinishReason,
    Objective,
    RequestKey,
    RequestSpec,
    Sampled,
    StepPlan,
    StepResult,
)


class Scheduler:
    """Decides each step. Single-threaded, reads no clock, draws no random number: same calls, same plans.

    ``memory``: a host pool and what copies cost; None: nothing is swapped.
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
        self._serial = 0
        self._steps = 0
        self._discarded_tokens = 0
        self._now = 0.0

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
        request = Request(spec, self._serial)
        ended = ended or self._end_of_resumed(spec)
        if now is not None and ended is None:
            refuse_unreachable(request, now, self._forecast, has_seat=self._has_seat())
            spec = request.spec
        request.objective = self._objective(spec)
        if request.objective is not None:
            request.due_seconds = spec.arrival_seconds + request.objective.ttft_seconds
        self._roster.enter(request, self._now if now is None else now, self._steps)
        if ended is not None:
            self._roster.end(request, ended, self._now, self._steps)

    def cancel(self, request_id: str, reason: FinishReason) -> None:
        """End a request now; the next apply emits its last output. Unknown ids leave no state."""
        request = self._roster.named(request_id)
        if request is not None:
            self._roster.end(request, reason, self._now, self._steps)

    def finish(self, key: RequestKey) -> None:
        """End a request whose last output the caller has already (a stop string in its text)."""
        request = self._roster.find(key)
        if request is not None:
            self._finish(request, FinishReason.STOP)

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
        """Other caps from the next step on; what runs beyond them goes on, in turns."""
        self._limits = self._planner.limits = limits

    def set_weight(self, tenant: str, weight: float) -> None:
        """A tenant's share from now on, of service and of the cache; raises ValueError unless above 0."""
        if not weight > 0.0:
            raise ValueError(f"the weight of tenant {tenant!r} is {weight}: give more than 0")
        self._policy.set_weight(tenant, weight)
        self._memory.ledger.cache.set_weight(tenant, weight)

    def set_priority(self, request_id: str, priority: int) -> None:
        """Move a live request to another class, with what it has computed. Unknown ids leave no state."""
        request = self._roster.named(request_id)
        if request is not None and request.spec.priority != priority:
            self._roster.move(request, replace(request.spec, priority=priority))

    # -- One step --------------------------------------------------------------------------------------------

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None when there is nothing to compute and nothing to tell.

        Order and time: see ``budget.py``. A plan that neither computes nor copies only carries last outputs
        to ``apply``: it is not executed, and what the runner has to forget waits for one that is.
        """
        self._end_overdue(now)
        self._steps += 1
        scheduled = self._planner.fill(self._steps, now, self._flights.last_seconds)
        # With nothing else to do, a step that only waits passes the fences of copies and of lost plans.
        is_stuck = not scheduled and self._flights.are_open
        is_waited_for = self._memory.is_swapping or is_stuck
        if not scheduled and not is_waited_for and not self._roster.farewells:
            self._steps -= 1
            self._roster.has_changed = False
            return None
        released = self._roster.releases_after(0) if scheduled or is_waited_for else ()
        plan = self._plan_of(scheduled, now, released, awaits_copies=is_waited_for)
        return self._memory.with_copies(plan)

    def plan_ahead(self, after: StepPlan, now: float) -> StepPlan | None:
        """The step behind ``after``, which is under way; None: it can only be planned from that one's result.

        Whoever is known to end with ``after`` is not in it. For whoever ends otherwise, by a token or by a
        call, ``apply`` discards one token. To be executed just after ``after`` was executed whole, or never.
        """
        self._end_overdue(now)
        flight = self._flights.under_way(after.step)
        if flight is None or after.step != self._steps or not after.chunks:
            return None
        starts_at = max(now, flight.started_at + (flight.predicted_seconds or self._flights.last_seconds))
        deadline = self._roster.next_deadline
        if deadline is not None and deadline <= starts_at:
            return None
        self._steps += 1
        with as_if_landed(after, self._roster, starts_at) as ending:
            try:
                scheduled = self._planner.fill(
                    self._steps, starts_at, self._flights.last_seconds, ending=ending
                )
            except ResultNeededError:
                scheduled = []
            if scheduled:
                released = self._roster.releases_after(flight.releases)
                plan = self._plan_of(scheduled, starts_at, released, awaits_copies=self._memory.is_swapping)
                return self._memory.with_copies(plan, after.step)
        self._steps -= 1
        return None

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> tuple[Emission, ...]:
        """Commit a step's result and say what it brings. ``now``: at the earliest when the step was planned.

        The one rule for what arrives late: a result counts once, for its own plan and before later ones, and
        a chunk only if its request (id and epoch) is live and has computed exactly up to where the chunk
        starts. Everything else is dropped: what arrives twice, or after an end, changes nothing.
        """
        emissions: list[Emission] = []
        flight = self._flights.land(plan, result, now)
        if flight is not None:
            self._roster.told(plan.released, flight.releases)
            self._now = now = flight.landed_at
            for chunk, sampled in zip(plan.chunks, _matched(plan, result), strict=True):
                request = self._roster.find(chunk.key)
                if request is None or request.computed_tokens != chunk.start:
                    self._discarded_tokens += chunk.samples
                    continue
                request.is_announced = True
                request.computed_tokens = end = chunk.start + len(chunk.token_ids)
                self._memory.publish(request, chunk.start, end)
                if chunk.samples:
                    emissions.append(self._commit_token(request, sampled, now))
        emissions.extend(self._roster.farewells.values())
        self._roster.farewells.clear()
        return tuple(emissions)

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
        dues = (self._roster.next_deadline, self._policy.next_due)
        return min((due for due in dues if due is not None), default=None)

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
                "step_prediction_error": self._cost.error,
                "step_predicted_seconds": self._flights.last_predicted_seconds,
                "discarded_tokens": float(self._discarded_tokens),
            },
        )

    def check(self) -> None:
        """Recount all books from scratch; raises InvariantError on the first difference."""
        self._roster.check()

    # -- Parts of a plan -------------------------------------------------------------------------------------

    def _end_overdue(self, now: float) -> None:
        for request in self._roster.overdue(now):
            if request.spec.is_demotable:
                self._roster.move(request, demoted(request.spec))
            else:
                self._roster.end(request, FinishReason.DEADLINE, now, self._steps)
        self._now = now

    def _plan_of(
        self,
        scheduled: list[tuple[Request, int]],
        starts_at: float,
        released: tuple[RequestKey, ...],
        *,
        awaits_copies: bool,
    ) -> StepPlan:
        plan = StepPlan(
            step=self._steps,
            chunks=tuple([self._chunk(request, tokens) for request, tokens in scheduled]),
            admitted=tuple([request.announcement() for request, _ in scheduled if not request.is_announced]),
            released=released,
            awaits_copies=awaits_copies,
        )
        self._flights.depart(plan, [request for request, _ in scheduled], starts_at, self._roster.releases)
        return plan

    def _chunk(self, request: Request, tokens: int) -> Chunk:
        if request.table is None:
            raise InvariantError(f"{request.key} is scheduled without a block table")
        known, start = request.tokens, request.computed_tokens
        end = start + tokens
        request.scheduled_step = self._steps
        request.skipped_steps = 0
        return Chunk(
            request.key,
            start,
            tuple(known[start:end]) if tokens > 1 else (known[start],),
            self._memory.ledger.extend(request.table, end, self._steps),
            end == len(known),
        )

    def _commit_token(self, request: Request, sampled: Sampled | None, now: float) -> Emission:
        if sampled is None:
            raise InvariantError(f"the runner sampled no token for {request.key}")
        index = request.generated_tokens
        request.tokens.append(sampled.token_id)
        if request.due_seconds is not None:
            request.pace(now)
        if index == len(request.spec.generated_token_ids):
            self._roster.record(request, Happening.PREFILLED, now, self._steps)
        reason = end_by_token(request.spec, self._eos_token_ids, index, sampled.token_id)
        if reason is not None:
            self._finish(request, reason)
        return Emission(request.key, index, sampled.token_id, sampled.logprobs, reason)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        """It ended by itself: its length says what to expect of its tenant."""
        self._memory.quantiles.observe(request.spec.tenant, request.generated_tokens)
        self._roster.record(request, Happening.FINISHED, self._now, self._steps, reason.value)
        self._roster.remove(request)

    def _has_seat(self) -> bool:
        """Whether nobody would have to wait now."""
        return not self._policy.waiting and len(self._roster.running) < self._limits.max_sequences

    def _objective(self, spec: RequestSpec) -> Objective | None:
        if spec.objective is not None or not 0 <= spec.priority < len(self._limits.objectives):
            return spec.objective
        return self._limits.objectives[spec.priority]

    def _end_of_resumed(self, spec: RequestSpec) -> FinishReason | None:
        generated = spec.generated_token_ids
        if not generated:
            return None
        return end_by_token(spec, self._eos_token_ids, len(generated) - 1, generated[-1])


def _matched(plan: StepPlan, result: StepResult) -> list[Sampled | None]:
    """Each chunk's sample, None where there is none."""
    entries = iter(result.sampled)
    matched = [next(entries, None) if chunk.samples else None for chunk in plan.chunks]
    # Mostly they are the plan's own keys, in its order; comparing and hashing costs ten times as much.
    if all(m is None or m.key is c.key for m, c in zip(matched, plan.chunks, strict=True)):
        return matched
    by_key = {entry.key: entry for entry in result.sampled}
    return [by_key.get(chunk.key) if chunk.samples else None for chunk in plan.chunks]
