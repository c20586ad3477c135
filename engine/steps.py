"""Steps: ``plan → execute → apply``, one rule, and nothing lost on the way.

Computed catches up with known. ``plan`` decides what one step computes; it ends what is overdue, starts what
fits and lengthens block tables, but a plan that is thrown away loses nothing. ``apply`` alone commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headway.engine.deadlines import demoted
from headway.engine.errors import InvariantError, ResultNeededError
from headway.engine.flights import Flights, computing_seconds
from headway.engine.look_ahead import as_if_landed
from headway.engine.memory import Memory
from headway.engine.planner import Planner
from headway.engine.request import Request, end_by_token
from headway.engine.roster import Roster
from headway.engine.speculation import NO_DRAFTS, Drafts, Speculation
from headway.engine.timeline import Happening
from headway.engine.values import (
    Chunk,
    Emission,
    FinishReason,
    RequestKey,
    RequestSpec,
    Sampled,
    StepPlan,
    StepResult,
)

NO_DRAFT: Final[tuple[int, ...]] = ()
NOTHING: Final[tuple[Sampled, ...]] = ()


class Steps:
    """Makes plans of what the planner grants, and commits their results to the requests."""

    def __init__(
        self,
        roster: Roster,
        planner: Planner,
        flights: Flights,
        memory: Memory,
        eos_token_ids: frozenset[int],
        *,
        speculation: Speculation | None = None,
    ) -> None:
        self._roster = roster
        self._planner = planner
        self._flights = flights
        self._memory = memory
        self._eos_token_ids = eos_token_ids
        self._speculation = speculation
        self.planned = 0
        """Number of the last plan."""
        self.now = 0.0
        """The last time that anybody told."""
        self.discarded_tokens = 0
        """Tokens sampled for requests that had ended by then."""

    def plan(self, now: float) -> StepPlan | None:
        """The next step; None when there is nothing to compute and nothing to tell.

        Order and time: see ``budget.py``. A plan that neither computes nor copies only carries last outputs
        to ``apply``: it is not executed, and what the runner has to forget waits for one that is.
        """
        self._end_overdue(now)
        scheduled = self._schedule(now)
        # With nothing else to do, a step that only waits passes the fences of copies and of lost plans.
        is_stuck = not scheduled and self._flights.are_open
        is_waited_for = self._memory.is_swapping or is_stuck
        if not scheduled and not is_waited_for and not self._roster.farewells:
            self.planned -= 1
            self._roster.has_changed = False
            return None
        released = self._roster.releases_after(0) if scheduled or is_waited_for else ()
        drafts: Drafts = {}
        if self._speculation is not None and scheduled:
            drafts = self._speculation.choose(scheduled, self._planner.budget)
        plan = self._plan_of(scheduled, now, released, awaits_copies=is_waited_for, drafts=drafts)
        return self._memory.with_copies(plan)

    def plan_ahead(self, after: StepPlan, now: float) -> StepPlan | None:
        """The step behind ``after``, which is under way; None: it depends on the result of that one.

        Whoever is known to end with ``after`` is not in it. For whoever ends otherwise, by a token or by a
        call, ``apply`` discards one token. To be executed just after ``after`` was executed whole, or never.
        """
        self._end_overdue(now)
        flight = self._flights.under_way(after.step)
        if flight is None or not after.chunks or any(flight.drafts):
            return None
        starts_at = max(now, flight.started_at + (flight.predicted_seconds or self._flights.last_seconds))
        deadline = self._roster.next_deadline
        if deadline is not None and deadline <= starts_at:
            return None
        self.planned += 1
        with as_if_landed(after, self._roster, starts_at) as ending:
            try:
                scheduled = self._planner.fill(
                    self.planned, starts_at, self._flights.last_seconds, ending=ending
                )
            except ResultNeededError:
                scheduled = []
            if scheduled:
                released = self._roster.releases_after(flight.releases)
                plan = self._plan_of(scheduled, starts_at, released, awaits_copies=self._memory.is_swapping)
                return self._memory.with_copies(plan, after.step)
        return None

    def move(self, request: Request, spec: RequestSpec) -> None:
        """Give a live request another class or deadline, and what its class aims at."""
        self._roster.move(request, spec)
        request.aim(self._planner.limits.objective_of(spec))

    def drop(self, plan: StepPlan) -> None:
        """A plan ahead will never be executed: the one before it failed."""
        self._flights.drop(plan.step)

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
            self.now = now = flight.landed_at
            for request, start, tokens, samples in zip(
                flight.requests, flight.starts, flight.tokens, flight.samples, strict=True
            ):
                if request.table is None or request.computed_tokens != start:
                    self.discarded_tokens += samples
                    continue
                request.is_announced = True
                entries = flight.sampled.get(request.key) if samples else NOTHING
                emissions += self._commit(request, start + tokens, entries, now)
            if self._speculation is not None:
                self._speculation.learn(flight, computing_seconds(result))
        emissions.extend(self._roster.farewells.values())
        self._roster.farewells.clear()
        return tuple(emissions)

    def _schedule(self, now: float) -> list[tuple[Request, int]]:
        """Who computes what in the next step.

        One that computes nothing but let somebody start or give way is followed by another at once: that one
        may find room, and no call would ask for it.
        """
        while True:
            self.planned += 1
            scheduled = self._planner.fill(self.planned, now, self._flights.last_seconds)
            if scheduled or not self._planner.has_moved or self._memory.is_swapping:
                return scheduled

    def _end_overdue(self, now: float) -> None:
        for request in self._roster.overdue(now):
            if request.spec.is_demotable:
                self.move(request, demoted(request.spec))
            else:
                self._roster.end(request, FinishReason.DEADLINE, now, self.planned)
        self.now = now

    def _plan_of(
        self,
        scheduled: list[tuple[Request, int]],
        starts_at: float,
        released: tuple[RequestKey, ...],
        *,
        awaits_copies: bool,
        drafts: Drafts = NO_DRAFTS,
    ) -> StepPlan:
        plan = StepPlan(
            step=self.planned,
            chunks=tuple([self._chunk(request, tokens, drafts) for request, tokens in scheduled]),
            admitted=tuple([request.announcement() for request, _ in scheduled if not request.is_announced]),
            released=released,
            awaits_copies=awaits_copies,
        )
        self._flights.depart(plan, scheduled, starts_at, self._roster.releases)
        return plan

    def _chunk(self, request: Request, tokens: int, drafts: Drafts) -> Chunk:
        if request.table is None:
            raise InvariantError(f"{request.key} is scheduled without a block table")
        known, start = request.tokens, request.computed_tokens
        end = start + tokens
        samples = end == len(known)
        token_ids = tuple(known[start:end]) if tokens > 1 else (known[start],)
        draft = drafts.get(request, NO_DRAFT) if drafts else NO_DRAFT
        if draft:
            token_ids, end = token_ids + draft, end + len(draft)
        request.scheduled_step = self.planned
        request.skipped_steps = 0
        return Chunk(
            request.key,
            start,
            token_ids,
            self._memory.ledger.extend(request.table, end, self.planned),
            samples,
            len(draft),
        )

    def _commit(
        self, request: Request, end: int, entries: Sequence[Sampled] | None, now: float
    ) -> list[Emission]:
        """Its KV exists up to ``end``, and these tokens came; one of them may end it before the others."""
        if entries is None:
            raise InvariantError(f"the runner sampled no token for {request.key}")
        emissions: list[Emission] = []
        for entry in entries:
            emissions.append(self._append(request, entry, now))
            if emissions[-1].finish_reason is not None:
                break
        size, start = self._memory.ledger.block_size, request.computed_tokens
        request.computed_tokens = end = min(end, len(request.tokens) - 1)
        if end // size > start // size:
            self._memory.publish(request)
        if emissions and (reason := emissions[-1].finish_reason) is not None:
            self.finish(request, reason)
        return emissions

    def _append(self, request: Request, sampled: Sampled, now: float) -> Emission:
        spec, tokens, token_id = request.spec, request.tokens, sampled.token_id
        index = len(tokens) - len(spec.prompt_token_ids)
        tokens.append(token_id)
        request.pace(now)
        if index == len(spec.generated_token_ids):
            self._roster.record(request, Happening.PREFILLED, now, self.planned)
        reason = end_by_token(spec, self._eos_token_ids, index, token_id)
        return Emission(request.key, index, token_id, sampled.logprobs, reason)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """It ended by itself: its length says what to expect of its tenant."""
        self._memory.quantiles.observe(request.spec.tenant, request.generated_tokens)
        self._roster.record(request, Happening.FINISHED, self.now, self.planned, reason.value)
        self._roster.remove(request)
