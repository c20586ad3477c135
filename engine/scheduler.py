"""The scheduler: ``plan → execute → apply``, one rule, and books that balance.

Computed catches up with known. ``plan`` decides what one step computes; it ends what is overdue, starts what
fits and lengthens block tables, but a plan that is thrown away loses nothing. ``apply`` alone commits.
"""

from __future__ import annotations

import heapq

from headway.engine.admission import grant_prefills, start_waiting
from headway.engine.blocks import BlockLedger
from headway.engine.errors import EngineFullError, InvariantError
from headway.engine.limits import StepLimits
from headway.engine.policy import Policy
from headway.engine.request import Request, end_by_token
from headway.engine.roster import Roster
from headway.engine.values import (
    Admitted,
    Chunk,
    Emission,
    EngineLoad,
    FinishReason,
    RequestKey,
    RequestSpec,
    Sampled,
    StepPlan,
    StepResult,
)


class Scheduler:
    """Decides each step. Single-threaded, reads no clock, draws no random number: same calls, same plans."""

    def __init__(
        self, ledger: BlockLedger, limits: StepLimits, policy: Policy, eos_token_ids: frozenset[int]
    ) -> None:
        self._ledger = ledger
        self._limits = limits
        self._policy = policy
        self._eos_token_ids = eos_token_ids
        self._roster = Roster(ledger, policy)
        self._serial = 0
        self._steps = 0
        self._executed_steps = 0
        self._last_step_seconds = 0.0

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

        Decodes first, then prefill chunks. A plan without chunks only carries last outputs to ``apply``: it
        is not executed, and what the runner has to forget waits for one that is.
        """
        for request in self._roster.overdue(now):
            self._roster.end(request, FinishReason.DEADLINE)
        active = self._active()
        scheduled = [(request, 1) for request in active if request.pending_tokens == 1]
        budget = self._limits.max_step_tokens - len(scheduled)
        started = start_waiting(self._policy, self._ledger, self._limits, active, budget)
        for request in started:
            self._roster.start(request)
        prefills = [request for request in active if request.pending_tokens != 1] + started
        scheduled += grant_prefills(self._policy, self._limits, prefills, budget)
        if not scheduled and not self._roster.farewells:
            self._roster.has_changed = False
            return None
        self._steps += 1
        return StepPlan(
            step=self._steps,
            chunks=tuple([self._chunk(request, tokens) for request, tokens in scheduled]),
            admitted=tuple([request.announcement() for request, _ in scheduled if not request.is_announced]),
            released=tuple(self._roster.released) if scheduled else (),
        )

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> tuple[Emission, ...]:  # noqa: ARG002 -- the seam has the time; timelines and the cost model of the next version read it
        """Commit a step's result and say what it brings.

        The one rule for what arrives late: a result counts only for its own plan, and a chunk only if its
        request (id and epoch) is live and has computed exactly up to where the chunk starts. Everything else
        is dropped: a result that arrives twice, or after a cancel, changes nothing.
        """
        emissions: list[Emission] = []
        if result.step == plan.step:
            self._executed_steps += len(plan.chunks) > 0
            self._last_step_seconds = result.elapsed_seconds
            for key in plan.released:
                self._roster.released.pop(key, None)
            sampled = {entry.key: entry for entry in result.sampled}
            for chunk in plan.chunks:
                request = self._roster.find(chunk.key)
                if request is None or request.computed_tokens != chunk.start:
                    continue
                request.is_announced = True
                request.computed_tokens += len(chunk.token_ids)
                if chunk.samples:
                    emissions.append(self._commit_token(request, sampled.get(chunk.key)))
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
        """The earliest deadline among live requests."""
        return self._roster.next_deadline

    @property
    def load(self) -> EngineLoad:
        """Counts between two steps; running, waiting and held requests are disjoint."""
        running = sum(not request.is_held for request in self._roster.running.values())
        waiting = self._policy.waiting
        return EngineLoad(
            running=running,
            waiting=waiting,
            held=len(self._roster) - running - waiting,
            kv_blocks_total=self._ledger.block_count,
            kv_blocks_used=self._ledger.used_blocks,
            steps=self._executed_steps,
            last_step_seconds=self._last_step_seconds,
            extra={"kv_blocks_reserved": float(self._ledger.reserved_blocks)},
        )

    def check(self) -> None:
        """Recount all books from scratch; raises InvariantError on the first difference."""
        self._roster.check()

    # -- Parts -----------------------------------------------------------------------------------------------

    def _active(self) -> list[Request]:
        """Running requests that this step may serve.

        Held ones do not count against ``max_sequences``, so there may be more once they come back: then those
        whose last step is longest ago go first.
        """
        active = [request for request in self._roster.running.values() if not request.is_held]
        if len(active) <= self._limits.max_sequences:
            return active
        return heapq.nsmallest(
            self._limits.max_sequences, active, key=lambda request: (request.scheduled_step, request.serial)
        )

    def _chunk(self, request: Request, tokens: int) -> Chunk:
        if request.table is None:
            raise InvariantError(f"{request.key} is scheduled without a block table")
        start = request.computed_tokens
        end = start + tokens
        request.scheduled_step = self._steps
        return Chunk(
            key=request.key,
            start=start,
            token_ids=tuple(request.tokens[start:end]),
            block_table=self._ledger.extend(request.table, end),
            samples=end == len(request.tokens),
        )

    def _commit_token(self, request: Request, sampled: Sampled | None) -> Emission:
        if sampled is None:
            raise InvariantError(f"the runner sampled no token for {request.key}")
        index = request.generated_tokens
        request.tokens.append(sampled.token_id)
        reason = end_by_token(request.spec, self._eos_token_ids, index, sampled.token_id)
        if reason is not None:
            self._roster.remove(request)
        return Emission(request.key, index, sampled.token_id, sampled.logprobs, reason)

    def _end_of_resumed(self, spec: RequestSpec) -> FinishReason | None:
        generated = spec.generated_token_ids
        if not generated:
            return None
        return end_by_token(spec, self._eos_token_ids, len(generated) - 1, generated[-1])
