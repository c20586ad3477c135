"""The scheduler: ``plan → execute → apply``, one rule, and books that balance.

Computed catches up with known. ``plan`` decides what one step computes; it ends what is overdue, starts what
fits and lengthens block tables, but a plan that is thrown away loses nothing. ``apply`` alone commits.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from headway.engine.admission import Admission
from headway.engine.blocks import BlockLedger
from headway.engine.budget import StepBudget
from headway.engine.cost_model import CostModel, StepShape, shape_of
from headway.engine.errors import EngineFullError, InvariantError
from headway.engine.limits import StepLimits
from headway.engine.memory import Memory
from headway.engine.policy import Policy
from headway.engine.preemption import Candidate, Preemption
from headway.engine.request import Request, end_by_token
from headway.engine.roster import Roster
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


@dataclass(slots=True)
class Flight:
    """What ``apply`` has to remember of a plan."""

    requests: list[Request]
    """Of its chunks, in order."""
    shape: StepShape
    planned_at: float
    predicted_seconds: float


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
        self._roster = Roster(self._memory, policy)
        self._flights: dict[int, Flight] = {}
        self._serial = 0
        self._steps = 0
        self._preempted_step = 0
        self._executed_steps = 0
        self._last_step_seconds = 0.0
        self._predicted_seconds = 0.0

    # -- Requests come, pause and go -------------------------------------------------------------------------

    def add(self, spec: RequestSpec, ended: FinishReason | None = None) -> None:
        """Let a checked request wait. ``ended``: nothing is left to compute, only the end is to be told.

        A newer epoch replaces a live older one, whose owner gets nothing more. Raises RequestError for the
        same or an older epoch, EngineFullError when too many wait.
        """
        self._roster.refuse_duplicate(spec)
        if self._roster.waiting >= self._limits.max_waiting:
            raise EngineFullError(
                f"{self._roster.waiting} requests wait, as many as max_waiting allows: try later or elsewhere"
            )
        self._serial += 1
        request = Request(spec, self._serial)
        request.objective = self._objective(spec)
        if request.objective is not None:
            request.due_seconds = spec.arrival_seconds + request.objective.ttft_seconds
        self._roster.enter(request)
        ended = ended or self._end_of_resumed(spec)
        if ended is not None:
            self._roster.end(request, ended)

    def cancel(self, request_id: str, reason: FinishReason) -> None:
        """End a request now; the next apply emits its last output. Unknown ids leave no state."""
        request = self._roster.named(request_id)
        if request is not None:
            self._roster.end(request, reason)

    def finish(self, key: RequestKey) -> None:
        """End a request whose last output the caller has already (a stop string in its text)."""
        request = self._roster.find(key)
        if request is not None:
            self._roster.remove(request)

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

    # -- One step --------------------------------------------------------------------------------------------

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None when there is nothing to compute and nothing to tell.

        Order and time: see ``budget.py``. A plan that neither computes nor copies only carries last outputs
        to ``apply``: it is not executed, and what the runner has to forget waits for one that is.
        """
        for request in self._roster.overdue(now):
            self._roster.end(request, FinishReason.DEADLINE)
        self._steps += 1
        scheduled = self._schedule(self._active(), now)
        is_waited_for = self._memory.is_swapping
        if not scheduled and not is_waited_for and not self._roster.farewells:
            self._steps -= 1
            self._roster.has_changed = False
            return None
        plan = StepPlan(
            step=self._steps,
            chunks=tuple([self._chunk(request, tokens) for request, tokens in scheduled]),
            admitted=tuple([request.announcement() for request, _ in scheduled if not request.is_announced]),
            released=tuple(self._roster.released) if scheduled or is_waited_for else (),
            awaits_copies=is_waited_for,
        )
        self._remember(plan, [request for request, _ in scheduled], now)
        return self._memory.with_copies(plan)

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> tuple[Emission, ...]:
        """Commit a step's result and say what it brings. ``now``: at the earliest when the step was planned.

        The one rule for what arrives late: a result counts only for its own plan, and a chunk only if its
        request (id and epoch) is live and has computed exactly up to where the chunk starts. Everything else
        is dropped: a result that arrives twice, or after a cancel, changes nothing.
        """
        emissions: list[Emission] = []
        if result.step == plan.step:
            for key in plan.released:
                self._roster.released.pop(key, None)
            flight = self._flights.pop(plan.step, None)
            if flight is not None:
                self._settle(plan, flight, result)
                now = max(now, flight.planned_at + result.elapsed_seconds)
            sampled = {entry.key: entry for entry in result.sampled}
            for chunk in plan.chunks:
                request = self._roster.find(chunk.key)
                if request is None or request.computed_tokens != chunk.start:
                    continue
                request.is_announced = True
                request.computed_tokens = end = chunk.start + len(chunk.token_ids)
                self._memory.publish(request, chunk.start, end)
                if chunk.samples:
                    emissions.append(self._commit_token(request, sampled.get(chunk.key), now))
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
            steps=self._executed_steps,
            last_step_seconds=self._last_step_seconds,
            extra={
                **self._memory.load(),
                "step_prediction_error": self._cost.error,
                "step_predicted_seconds": self._predicted_seconds,
            },
        )

    def check(self) -> None:
        """Recount all books from scratch; raises InvariantError on the first difference."""
        self._roster.check()

    # -- Parts of a plan -------------------------------------------------------------------------------------

    def _active(self) -> list[Request]:
        """Running requests that this step may serve.

        Held ones do not count against ``max_sequences``, so there may be more once they come back: then those
        whose last step is longest ago go first.
        """
        active = [request for request in self._roster.running.values() if not request.is_held]
        if self._memory.is_swapping:
            active = [request for request in active if not self._memory.is_arriving(request)]
        if len(active) <= self._limits.max_sequences:
            return active
        return heapq.nsmallest(
            self._limits.max_sequences, active, key=lambda request: (request.scheduled_step, request.serial)
        )

    def _make_room(self, active: list[Request], now: float) -> set[Request]:
        """Lengthen the tables of decodes beyond what is reserved; returns those that have to wait a step.

        Where blocks are short somebody gives way, but never the first of those who need them: best class,
        oldest. Blocks that copies under way will free are waited for instead.
        """
        if not self._memory.is_overcommitted:
            return set()
        growing = [r for r in active if r.pending_tokens == 1 and self._memory.lacking(r)]
        growing.sort(key=lambda request: (request.spec.priority, request.serial))
        while (short := len(growing) - self._memory.ledger.available_blocks) > 0:
            others = [r for r in self._roster.running.values() if r is not growing[0]]
            victims = () if self._memory.coming_blocks else self._choose(others, short, now)
            if not victims:
                break
            for victim in victims:
                self._give_way(victim)
            active[:] = [request for request in active if request.table is not None]
            growing = [request for request in growing if request.table is not None]
        room = max(0, self._memory.ledger.available_blocks)
        for request in growing[:room]:
            self._memory.grow(request, self._steps)
        return set(growing[room:])

    def _choose(self, others: list[Request], blocks: int, now: float) -> tuple[Preemption, ...]:
        """Who gives way for running requests; those about to be late only if there is nobody else."""
        load = 1.0 + min(3.0, self._policy.waiting / max(1, len(others)))
        for step_seconds in (self._last_step_seconds, -math.inf):
            victims = self._memory.choose(
                [self._candidate(request, now) for request in others],
                blocks,
                load=load,
                step_seconds=step_seconds,
            )
            if victims:
                return victims
        return ()

    def _candidate(self, request: Request, now: float) -> Candidate:
        dues = (request.due_seconds, request.spec.deadline_seconds)
        slack = min((due - now for due in dues if due is not None), default=math.inf)
        return Candidate(request, self._policy.over_share(request), slack, self._memory.kept_tokens(request))

    def _give_way(self, preemption: Preemption) -> None:
        self._memory.give_way(preemption, self._steps)
        self._roster.stop(preemption.request)
        self._preempted_step = self._steps

    def _schedule(self, active: list[Request], now: float) -> list[tuple[Request, int]]:
        """Who gets how many tokens in this step. After a preemption nobody starts but its beneficiary."""
        waiting = self._make_room(active, now)
        budget = StepBudget(self._limits, self._cost, now)
        decodes: list[Request] = []
        prefills: list[Request] = []
        for request in active:
            (decodes if len(request.tokens) - request.computed_tokens == 1 else prefills).append(request)
        if waiting:
            decodes = [request for request in decodes if request not in waiting]
        urgent, patient = budget.split(decodes)
        budget.take_decodes(urgent)
        self._memory.expect(prefills)
        if self._preempted_step < self._steps:
            admission = Admission(
                policy=self._policy,
                memory=self._memory,
                limits=self._limits,
                active=active,
                prefills=prefills,
                budget=budget.prefill_tokens(),
                start=lambda request: self._start(request, now),
                give_way=self._give_way,
                candidate=lambda request: self._candidate(request, now),
            )
            prefills += admission.run(now)
        present = [r for r in prefills if r.table is not None and not self._memory.is_arriving(r)]
        granted = budget.grant_prefills(self._policy, present)
        taken = budget.take_patient([r for r in patient if r.table is not None], is_crowded=bool(granted))
        runs = [(request, 1) for request in urgent if request.table is not None]
        return runs + granted + [(request, 1) for request in taken]

    def _start(self, request: Request, now: float) -> None:
        self._memory.open(request, self._steps)
        paid = max(request.charged_tokens, request.computed_tokens)
        cost = self._cost.price(paid, request.known_tokens - paid) if paid < request.known_tokens else 0.0
        self._roster.start(request, now, cost)

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

    def _remember(self, plan: StepPlan, requests: list[Request], now: float) -> None:
        """Keep what ``apply`` needs; of plans that were thrown away only the last."""
        shape = shape_of([(chunk.start, len(chunk.token_ids)) for chunk in plan.chunks])
        predicted = self._cost.predict(shape) if plan.chunks else 0.0
        self._flights = {step: f for step, f in self._flights.items() if step == plan.step - 1}
        self._flights[plan.step] = Flight(requests, shape, now, predicted)

    # -- Parts of apply --------------------------------------------------------------------------------------

    def _settle(self, plan: StepPlan, flight: Flight, result: StepResult) -> None:
        """Book what a step took: time for the model, service for the shares, fences for the blocks."""
        self._memory.complete(plan, result.copied_step)
        self._last_step_seconds = result.elapsed_seconds
        self._predicted_seconds = flight.predicted_seconds
        if not plan.chunks:
            return
        self._executed_steps += 1
        self._cost.observe(flight.shape, result.elapsed_seconds)
        for request, chunk in zip(flight.requests, plan.chunks, strict=True):
            end = chunk.start + len(chunk.token_ids)
            # What was computed before, and lost to a preemption, is paid for.
            paid = max(chunk.start, request.charged_tokens)
            if paid < end:
                # Also when it was cancelled meanwhile: the time is spent.
                self._policy.charge(request, self._cost.price(paid, end - paid))
                request.charged_tokens = end

    def _commit_token(self, request: Request, sampled: Sampled | None, now: float) -> Emission:
        if sampled is None:
            raise InvariantError(f"the runner sampled no token for {request.key}")
        index = request.generated_tokens
        request.tokens.append(sampled.token_id)
        request.pace(now)
        reason = end_by_token(request.spec, self._eos_token_ids, index, sampled.token_id)
        if reason is not None:
            self._memory.quantiles.observe(request.spec.tenant, request.generated_tokens)
            self._roster.remove(request)
        return Emission(request.key, index, sampled.token_id, sampled.logprobs, reason)

    def _objective(self, spec: RequestSpec) -> Objective | None:
        if spec.objective is not None or not 0 <= spec.priority < len(self._limits.objectives):
            return spec.objective
        return self._limits.objectives[spec.priority]

    def _end_of_resumed(self, spec: RequestSpec) -> FinishReason | None:
        generated = spec.generated_token_ids
        if not generated:
            return None
        return end_by_token(spec, self._eos_token_ids, len(generated) - 1, generated[-1])
