"""The real scheduler on a virtual clock: only steps and the gaps between arrivals move the time.

No wall clock, no randomness, no input or output in here: the same demands give the same run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from headway.engine.errors import EngineError, InvariantError
from headway.engine.scheduler import Scheduler
from headway.engine.values import (
    Emission,
    RequestKey,
    RequestSpec,
    Sampled,
    Sampling,
    StepPlan,
    StepResult,
)
from headway.services.hardware import Hardware, StepWork
from headway.services.host_link import HostLink
from headway.services.simulation_run import GAP_SECONDS, Journey, LoadPoint, SimulationRun
from headway.services.traffic import Backlog, Demand

ANSWER_TOKEN: Final = 0
END_TOKEN: Final = 1
END_TOKENS: Final = frozenset({END_TOKEN})
_FIRST_PROMPT_TOKEN: Final = 2
_SAMPLING: Final = Sampling(temperature=0.0)
_TIMES_LOOKED_AT: Final = 400
"""Points of the load curve, at most about twice as many."""


class Simulation:
    """One scheduler, one simulated device.

    ``answer_limit`` is what clients send as ``max_tokens``; None: exactly what they will get, as if known.
    Tenants with a backlog send until ``until_seconds``; then everything that is open runs to its end. What
    was sent reaches the scheduler ``before_seconds`` later, and clients hear ``after_seconds`` after a step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        hardware: Hardware,
        demands: Iterable[Demand],
        *,
        backlogs: Sequence[Backlog] = (),
        until_seconds: float = 0.0,
        answer_limit: int | None = None,
        longest_tokens: int = 1 << 62,
        link: HostLink | None = None,
        tpot_seconds: float = 0.05,
        before_seconds: float = 0.0,
        after_seconds: float = 0.0,
    ) -> None:
        self._scheduler = scheduler
        self._hardware = hardware
        self._prices = hardware.coefficients
        self._coming = deque(sorted(demands, key=lambda demand: demand.seconds))
        self._backlogs = backlogs
        self._until_seconds = until_seconds
        self._answer_limit = answer_limit
        self._longest_tokens = longest_tokens
        self._link = link or HostLink(0.0, 1.0, 0.0)
        self._tpot_seconds = tpot_seconds
        self._before_seconds = before_seconds
        self._after_seconds = after_seconds
        self._now = 0.0
        self._journeys: dict[str, Journey] = {}
        names = {demand.tenant for demand in self._coming} | {backlog.tenant for backlog in backlogs}
        self._waiting = dict.fromkeys(sorted(names), 0)
        self._run = SimulationRun(
            service=dict.fromkeys(self._waiting, 0.0), backlogged_service=dict.fromkeys(self._waiting, 0.0)
        )
        self._load_every = (
            max(until_seconds, self._coming[-1].seconds if self._coming else 0) / _TIMES_LOOKED_AT
        )
        self._next_load = 0.0

    def run(self) -> SimulationRun:
        """Let everything arrive and end; raises InvariantError when the scheduler stands still."""
        while True:
            self._let_arrive()
            plan = self._scheduler.plan(self._now)
            if plan is not None:
                self._step(plan)
            elif not self._wait():
                break
        run = self._run
        run.journeys = list(self._journeys.values())
        run.end_seconds = self._now
        run.extra = dict(self._scheduler.load.extra)
        run.timeline = self._scheduler.timeline
        return run

    # -- Arrivals --------------------------------------------------------------------------------------------

    def _let_arrive(self) -> None:
        while self._coming and self._coming[0].seconds + self._before_seconds <= self._now:
            demand = self._coming.popleft()
            self._add(demand, demand.seconds)
        if self._now < self._until_seconds:
            for backlog in self._backlogs:
                for _ in range(backlog.waiting - self._waiting[backlog.tenant]):
                    self._add(next(backlog.demands), self._now)

    def _add(self, demand: Demand, seconds: float) -> None:
        number = len(self._journeys)
        key = RequestKey(f"r{number}", 0)
        journey = Journey(
            demand,
            seconds,
            last_position=demand.prompt_tokens + demand.answer_tokens - 1,
            replies=(Sampled(key, ANSWER_TOKEN), Sampled(key, END_TOKEN)),
        )
        self._journeys[key.request_id] = journey
        max_tokens = max(demand.answer_tokens, self._answer_limit or 0)
        if demand.prompt_tokens + max_tokens > self._longest_tokens:
            journey.is_refused = True
            return
        try:
            self._scheduler.add(self._spec(key, demand, seconds, max_tokens), now=self._now)
        except EngineError:
            journey.is_refused = True
        else:
            self._waiting[demand.tenant] += 1

    def _spec(self, key: RequestKey, demand: Demand, seconds: float, max_tokens: int) -> RequestSpec:
        # Prompts differ from each other in every token, but for the prefix that a tenant's prompts share.
        own = _FIRST_PROMPT_TOKEN + len(self._waiting) + len(self._journeys)
        shared = _FIRST_PROMPT_TOKEN + list(self._waiting).index(demand.tenant)
        prefix = demand.shared_prefix_tokens
        return RequestSpec(
            request_id=key.request_id,
            epoch=key.epoch,
            prompt_token_ids=(shared,) * prefix + (own,) * (demand.prompt_tokens - prefix),
            sampling=_SAMPLING,
            max_tokens=max_tokens,
            tenant=demand.tenant,
            priority=demand.priority,
            arrival_seconds=seconds,
            deadline_seconds=None if demand.deadline_seconds is None else seconds + demand.deadline_seconds,
        )

    def _wait(self) -> bool:
        """Move the clock to what happens next; False when nothing is left to happen."""
        coming = self._coming[0].seconds + self._before_seconds if self._coming else None
        deadline = self._scheduler.next_deadline
        moments = [moment for moment in (coming, deadline) if moment is not None]
        if moments:
            self._now = max(self._now, min(moments))
            return True
        if self._scheduler.has_work:
            raise InvariantError(f"at {self._now} s requests are live, none is planned, and none is to come")
        return False

    # -- One step --------------------------------------------------------------------------------------------

    def _step(self, plan: StepPlan) -> None:
        run = self._run
        if self._now >= self._next_load:
            self._look_at_load()
        all_wait = len(self._waiting) > 1 and all(self._waiting.values())
        for admitted in plan.admitted:
            self._note_start(admitted.key)
        work, sampled = self._execute(plan)
        self._link.send(plan, self._now)
        elapsed = self._hardware.seconds(work) if plan.chunks else 0.0
        if not (plan.chunks and self._link.is_beside):
            # A plan without chunks waits for all copies, and so does any where the device copies itself.
            elapsed += max(0.0, self._link.free_at - self._now)
        if len(self._waiting) > 1:
            self._account(plan, elapsed, all_wait)
        self._now += elapsed
        run.steps += len(plan.chunks) > 0
        run.busy_seconds += elapsed if plan.chunks else 0.0
        run.computed_tokens += work.new_tokens
        copied_step = self._link.copied_step(self._now)
        result = StepResult(plan.step, tuple(sampled), elapsed, copied_step, self._link.take_times())
        self._read(self._scheduler.apply(plan, result, self._now))

    def _execute(self, plan: StepPlan) -> tuple[StepWork, list[Sampled]]:
        """What a device would compute, and the tokens that it would choose."""
        new_tokens = context_tokens = 0
        pairs = 0.0
        sampled: list[Sampled] = []
        journeys = self._journeys
        for key, start, token_ids, _, samples, _ in plan.chunks:
            tokens = len(token_ids)
            end = start + tokens
            new_tokens += tokens
            context_tokens += end
            pairs += tokens * (start + 0.5 * tokens)
            if samples:
                journey = journeys[key.request_id]
                sampled.append(journey.replies[end >= journey.last_position])
        return StepWork(new_tokens, context_tokens, pairs, len(sampled)), sampled

    def _account(self, plan: StepPlan, elapsed: float, all_wait: bool) -> None:
        """Book the step's tokens to their tenants, at the hardware's marginal prices."""
        prices = self._prices
        books = [self._run.service, self._run.backlogged_service] if all_wait else [self._run.service]
        self._run.backlogged_seconds += elapsed if all_wait else 0.0
        for chunk in plan.chunks:
            tokens = len(chunk.token_ids)
            end = chunk.start + tokens
            seconds = prices.marginal_seconds(tokens, end, tokens * (chunk.start + 0.5 * tokens))
            tenant = self._journeys[chunk.key.request_id].demand.tenant
            for book in books:
                book[tenant] += seconds

    def _note_start(self, key: RequestKey) -> None:
        journey = self._journeys[key.request_id]
        journey.starts += 1
        if journey.first_scheduled_seconds is None:
            journey.first_scheduled_seconds = self._now
            self._waiting[journey.demand.tenant] -= 1

    def _read(self, emissions: Sequence[Emission]) -> None:
        journeys, gaps, tpot_seconds = self._journeys, self._run.gaps, self._tpot_seconds
        now = self._now + self._after_seconds
        last_seconds, gap = now, 0
        for key, _, token_id, _, finish_reason in emissions:
            journey = journeys[key.request_id]
            if token_id is not None:
                if journey.tokens:
                    # Mostly the same as for the one before: they were in the same steps.
                    if journey.last_token_seconds != last_seconds:
                        last_seconds = journey.last_token_seconds
                        gap = round((now - last_seconds) / GAP_SECONDS)
                    gaps[gap] += 1
                else:
                    journey.first_token_seconds = now
                lag = now - journey.arrival_seconds - journey.tokens * tpot_seconds
                if lag > journey.lag_seconds:  # noqa: PLR1730 -- once per token, and max() costs three times as much
                    journey.lag_seconds = lag
                journey.tokens += 1
                journey.last_token_seconds = now
            if finish_reason is not None:
                journey.finish_reason = finish_reason
                journey.finish_seconds = now
                if journey.first_scheduled_seconds is None:
                    self._waiting[journey.demand.tenant] -= 1

    def _look_at_load(self) -> None:
        load = self._scheduler.load
        kv_share = load.kv_blocks_used / load.kv_blocks_total
        self._run.load.append(LoadPoint(self._now, load.running, load.waiting, kv_share))
        self._next_load = self._now + self._load_every
