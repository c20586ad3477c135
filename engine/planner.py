"""What one step holds: who gets room, who starts, who gives way, and how many tokens each."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from functools import partial

from headway.engine.admission import Admission
from headway.engine.budget import StepBudget
from headway.engine.cost_model import CostModel
from headway.engine.errors import ResultNeededError
from headway.engine.limits import StepLimits
from headway.engine.memory import Memory
from headway.engine.plain_step import is_plain
from headway.engine.policy import Policy
from headway.engine.preemption import Candidate, Mode, Preemption
from headway.engine.releases import MOST_DEFERRED_STEPS, release_seconds
from headway.engine.request import Request
from headway.engine.roster import Roster
from headway.engine.timeline import Happening


class Planner:
    """Fills steps from the roster. Changes places and tables, commits no tokens."""

    def __init__(
        self, roster: Roster, policy: Policy, memory: Memory, limits: StepLimits, cost: CostModel
    ) -> None:
        self.limits = limits
        self._roster = roster
        self._policy = policy
        self._memory = memory
        self._cost = cost
        self._step = 0
        self._now = 0.0
        self._step_seconds = 0.0
        self._has_preempted = False
        self._is_ahead = False
        self._budget: StepBudget | None = None
        """None: the last step holds everybody's decode, which took no asking."""
        self.has_moved = False
        """Whether the last step started somebody, let somebody give way, or ended a claim: if it computes
        nothing all the same, the next may."""

    @property
    def budget(self) -> StepBudget:
        """What the step just filled has left."""
        if self._budget is None:
            self._budget = StepBudget(self.limits, self._cost, self._now)
            self._budget.take_decodes([*self._roster.running.values()])
        return self._budget

    def fill(
        self, step: int, now: float, step_seconds: float, *, ending: AbstractSet[Request] | None = None
    ) -> list[tuple[Request, int]]:
        """Who gets how many tokens in this step; ``step_seconds``: how long the last one took.

        After a preemption nobody starts but its beneficiary. ``ending``: those who end with the step before,
        which is under way. Raises ResultNeededError then where somebody might have to give way.
        """
        self._step, self._now, self._step_seconds = step, now, step_seconds
        self._is_ahead, self._has_preempted, self.has_moved = ending is not None, False, False
        if not ending and is_plain(self._roster.running, self._policy, self._memory, self.limits):
            self._budget = None
            self._memory.expect((), is_ahead=self._is_ahead)
            return [(request, 1) for request in self._roster.running.values()]
        active, waiting = self._seat(ending or set())
        decodes = [request for request in active if request.pending_tokens == 1 and request not in waiting]
        prefills = [request for request in active if request.pending_tokens != 1]
        self._budget = budget = StepBudget(self.limits, self._cost, now)
        urgent, patient = budget.split(decodes)
        budget.take_decodes(urgent)
        self._memory.expect(prefills, is_ahead=self._is_ahead)
        # Who started beyond the places of this step has its first turn in the next.
        prefills += self._admit(active, decodes, prefills, budget)[: self.limits.max_sequences - len(active)]
        self.has_moved |= self._memory.expire_claim()
        present = [r for r in prefills if r.table is not None and not self._memory.is_arriving(r)]
        granted = budget.grant_prefills(self._policy, present)
        taken = budget.take_patient([r for r in patient if r.table is not None], is_crowded=bool(granted))
        runs = [(request, 1) for request in urgent if request.table is not None]
        return runs + granted + [(request, 1) for request in taken]

    def _seat(self, ending: AbstractSet[Request]) -> tuple[list[Request], set[Request]]:
        """Who has a place in this step, with room to grow; and who is left out: ending, or short of blocks.

        Where more run than have places, others take the places of those who wait: they may end, and so bring
        the blocks.
        """
        waiting = set(ending)
        active = self._active(waiting)
        while more := self._make_room(active):
            waiting |= more
            others = self._active(waiting)
            if not set(others).difference(active):
                break
            active = others
        return active, waiting

    def _active(self, waiting: set[Request]) -> list[Request]:
        """Running requests that this step may serve, without those that are known to be left out.

        There may be more than ``max_sequences``: held ones that came back, and tenants below their share that
        run in turns with the others. Those whose last step is longest ago go first.
        """
        running = self._roster.running.values()
        active = [request for request in running if not request.is_held and request not in waiting]
        if self._memory.is_swapping:
            active = [request for request in active if not self._memory.is_arriving(request)]
        if len(active) <= self.limits.max_sequences:
            return active
        return heapq.nsmallest(
            self.limits.max_sequences, active, key=lambda request: (request.scheduled_step, request.serial)
        )

    def _admit(
        self, active: list[Request], decodes: list[Request], prefills: list[Request], budget: StepBudget
    ) -> list[Request]:
        if self._has_preempted or not self._policy.waiting:
            return []
        admission = Admission(
            policy=self._policy,
            memory=self._memory,
            limits=self.limits,
            active=active,
            running=self._roster.running,
            prefills=prefills,
            budget=budget.prefill_tokens(),
            start=self._start,
            give_way=self._give_way,
            postpone=partial(self._postpone, computing=decodes),
            candidate=self._candidate,
        )
        return admission.run(self._now)

    # -- Blocks are short ------------------------------------------------------------------------------------

    def _make_room(self, active: list[Request]) -> set[Request]:
        """Lengthen the tables of decodes beyond what is reserved; returns those that have to wait a step.

        Where blocks are short somebody gives way, but never the first of those who need them: best class,
        oldest. Blocks that copies under way will free are waited for instead.
        """
        if not self._memory.is_overcommitted:
            return set()
        growing = [r for r in active if r.pending_tokens == 1 and self._memory.lacking(r)]
        growing.sort(key=lambda request: (request.spec.priority, request.serial))
        while (short := len(growing) - (spare := max(0, self._memory.spare_blocks()))) > 0:
            others = [r for r in self._roster.running.values() if r is not growing[0]]
            lucky = set(active).difference(growing[spare:])
            is_waiting = self._memory.coming_blocks or self._memory.is_claimed
            victims = () if is_waiting else self._choose(others, short)
            if not victims and not is_waiting and short >= len(growing):
                # Nobody can free enough for all. Then for the first: who gives way needs no block any more.
                short -= len(growing) - 1
                victims = self._choose(others, short)
            if not victims or self._postpone(growing[spare], victims, short, computing=lucky):
                break
            for victim in victims:
                self._give_way(victim)
            active[:] = [request for request in active if request.table is not None]
            growing = [request for request in growing if request.table is not None]
        room = max(0, self._memory.spare_blocks())
        for request in growing[:room]:
            self._memory.grow(request)
            request.deferred_steps = 0
        return set(growing[room:])

    def _choose(self, others: list[Request], blocks: int) -> tuple[Preemption, ...]:
        """Who gives way for running requests; those about to be late only if there is nobody else."""
        candidates, choose = [self._candidate(request) for request in others], self._memory.giving_way.choose
        for step_seconds in (self._step_seconds, -math.inf):
            if victims := choose(candidates, blocks, step_seconds=step_seconds):
                return victims
        return ()

    def _postpone(
        self,
        request: Request,
        victims: tuple[Preemption, ...],
        blocks: int,
        sequences: int = 0,
        *,
        computing: Iterable[Request],
    ) -> bool:
        """Let it wait a step where room comes by itself sooner than victims would be back; whether it does.

        It comes from those who compute in this step: who lacks a block himself does not get on.
        ``MOST_DEFERRED_STEPS`` times in a row at most, and only where costs are more than a guess.
        """
        if request.deferred_steps >= MOST_DEFERRED_STEPS or not self._cost.is_trusted:
            return False
        seconds = release_seconds(
            computing, self._memory, blocks=blocks, sequences=sequences, step_seconds=self._step_seconds
        )
        if seconds >= sum([victim.seconds for victim in victims]):
            return False
        request.deferred_steps += 1
        self._memory.giving_way.deferred += 1
        return True

    def _candidate(self, request: Request) -> Candidate:
        if self._is_ahead:
            # Who is in the step under way cannot give way, and who ends with it makes room anyway.
            raise ResultNeededError
        dues = (request.due_seconds, request.spec.deadline_seconds)
        slack = min((due - self._now for due in dues if due is not None), default=math.inf)
        return Candidate(request, self._policy.over_share(request), slack, self._memory.kept_tokens(request))

    def _give_way(self, preemption: Preemption) -> None:
        request = preemption.request
        happening = Happening.SWAPPED if preemption.mode is Mode.SWAP else Happening.RECOMPUTED
        self._roster.record(request, happening, self._now, self._step, str(request.computed_tokens))
        self._memory.giving_way.give_way(preemption, self._step)
        self._roster.stop(request)
        self._has_preempted = self.has_moved = True

    def _start(self, request: Request) -> None:
        if self._is_ahead and self._memory.forks.tokens(request):
            # What it would share may be computed by the step under way, whose result nobody has.
            raise ResultNeededError
        happening = Happening.RESUMED if request.preemptions else Happening.STARTED
        self._roster.record(request, happening, self._now, self._step)
        self._memory.open(request, self._step)
        request.deferred_steps = 0
        self.has_moved = True
        paid = max(request.charged_tokens, request.computed_tokens)
        cost = self._cost.price(paid, request.known_tokens - paid) if paid < request.known_tokens else 0.0
        self._roster.start(request, self._now, cost)
