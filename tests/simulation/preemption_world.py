"""Random requests through the real scheduler on a pool that is far too small: every answer compared.

The scripted runner chooses each token by a hash of the whole history as it lies in the request's blocks, so a
preemption, a swap, a prefix hit or a late copy that went wrong shows as a wrong answer.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headway.engine.blocks import BlockLedger
from headway.engine.cost_model import CostModel
from headway.engine.host_pool import HostPool
from headway.engine.limits import StepLimits
from headway.engine.memory import Memory
from headway.engine.policy import POLICIES
from headway.engine.preemption import PreemptionCosts, PreemptionLimits
from headway.engine.prefix_cache import PrefixCache
from headway.engine.scheduler import Scheduler
from headway.engine.scripted import LETTERS, ScriptedRunner, StepCost
from headway.engine.timeline import Happening, RequestEvent
from headway.engine.values import Emission, FinishReason, RequestSpec, Sampling, StepPlan, StepResult

CHEAP_SWAPS = PreemptionCosts(1.0, 1e9, 1e9)
NO_SWAPS = PreemptionCosts(1.0, 1e-9, 1e-9)
DEAR_WAYS = PreemptionCosts(1.0, 5.0, 5.0)
"""Coming back takes so long, either way, that waiting for somebody's end is often better."""


@dataclass
class Told:
    """One request: what its answer must be, and what came of it so far."""

    spec: RequestSpec
    answer: tuple[int, ...]
    tokens: list[int] = field(default_factory=list[int])
    end: FinishReason | None = None
    is_cancelled: bool = False


class PreemptionWorld:
    """A scheduler with overcommit, prefix cache and host pool, and a runner whose swaps are late."""

    def __init__(
        self,
        rng: random.Random,
        *,
        block_count: int,
        block_size: int,
        slots: int,
        copy_delay: int,
        policy: str,
        costs: PreemptionCosts = CHEAP_SWAPS,
        max_preemptions: int = 3,
        alphabet: Sequence[int] = LETTERS,
        max_draft_tokens: int = 0,
    ) -> None:
        self.rng = rng
        self.runner = ScriptedRunner(
            block_count=block_count,
            block_size=block_size,
            host_slots=slots,
            copy_delay=copy_delay,
            max_model_len=min(24, block_count * block_size),
            alphabet=alphabet,
            cost=StepCost(0.01, 0.1 if costs is DEAR_WAYS else 0.001, 0.0001),
        )
        sequences = rng.randint(1, 9)
        self.max_preemptions = max_preemptions
        self.limits = StepLimits(
            max_step_tokens=sequences + rng.randint(0, 8),
            max_sequences=sequences,
            min_chunk_tokens=rng.randint(1, 5),
            max_passes=rng.randint(1, 3),
            max_looks=rng.randint(1, 3),
            is_overcommitted=True,
        )
        cache = PrefixCache(block_size, is_enabled=rng.random() < 0.7)
        self.ledger = BlockLedger(block_count, block_size, cache)
        self.pool = HostPool(self.ledger, slots)
        cost = CostModel()
        self.memory = Memory(
            self.ledger,
            cost,
            is_overcommitted=True,
            host=self.pool,
            costs=costs,
            limits=PreemptionLimits(max_preemptions=max_preemptions, headroom_tokens=rng.randint(0, 4)),
        )
        eos = self.runner.eos_token_ids
        self.scheduler = Scheduler(
            self.ledger,
            self.limits,
            POLICIES[policy](),
            eos,
            cost=cost,
            memory=self.memory,
            max_draft_tokens=max_draft_tokens,
        )
        self.told: dict[str, Told] = {}
        self.held: set[str] = set()
        """Who may be on hold."""
        self.now: float = 0.0
        self.count = 0
        self.seen: Counter[str] = Counter()

    @property
    def live(self) -> list[Told]:
        return [told for told in self.told.values() if told.end is None]

    def act(self) -> None:
        """One random operation and a recount."""
        operations = (self.add, self.step, self.cancel, self.hold, self.unhold, self.change, self.lose)
        self.rng.choices(operations, (3, 12, 0.5, 0.5, 1, 1, 3))[0]()
        self.scheduler.check()

    def add(self) -> None:
        if len(self.live) >= 10:
            return
        self.count += 1
        room = self.runner.max_model_len
        prompt = [1, 2, 1, 2, 2, 1, 1, 2][: self.rng.randint(1, min(8, room - 2))]
        prompt.append(self.rng.randint(1, 2))
        if self.rng.random() < 0.3:
            prompt[0] = 3
        tenant, parent = self.rng.choice("abc"), None
        if self.live and self.rng.random() < 0.3:
            # Perhaps not computed yet, held, swapped out or about to end: a fork may ask at any time.
            parent = self.rng.choice(self.live).spec
            prompt, tenant = list(parent.prompt_token_ids), parent.tenant
        most = room - len(prompt)
        if most < 1:
            return
        spec = RequestSpec(
            request_id=f"r{self.count}",
            epoch=1,
            prompt_token_ids=tuple(prompt),
            sampling=Sampling(seed=self.rng.randint(0, 2)),
            max_tokens=self.rng.randint(1, most),
            tenant=tenant,
            priority=self.rng.randint(0, 2),
            arrival_seconds=self.now,
            deadline_seconds=self.now + self.rng.uniform(0.1, 2.0) if self.rng.random() < 0.1 else None,
            is_demotable=self.rng.random() < 0.3,
            fork_of=None if parent is None else parent.request_id,
        )
        answer = self.runner.reference(spec.prompt_token_ids, spec.sampling, spec.max_tokens)
        self.told[spec.request_id] = Told(spec, answer)
        self.scheduler.add(spec)

    def cancel(self) -> None:
        if self.live:
            told = self.rng.choice(self.live)
            told.is_cancelled = True
            self.scheduler.cancel(told.spec.request_id, FinishReason.CANCELLED)

    def hold(self) -> None:
        if self.live:
            request_id = self.rng.choice(self.live).spec.request_id
            self.scheduler.hold(request_id)
            self.held.add(request_id)

    def unhold(self) -> None:
        for told in self.live:
            self.scheduler.unhold(told.spec.request_id)
        self.held.clear()

    def change(self) -> None:
        """Weights, classes and limits change while requests run."""
        self.scheduler.set_weight(self.rng.choice("abc"), self.rng.choice((0.5, 1.0, 3.0)))
        if self.live:
            self.scheduler.set_priority(self.rng.choice(self.live).spec.request_id, self.rng.randint(0, 2))
        sequences = self.rng.randint(1, 9)
        tokens = sequences + self.rng.randint(0, 8)
        self.limits = replace(self.limits, max_sequences=sequences, max_step_tokens=tokens)
        self.scheduler.set_limits(self.limits)

    def lose(self) -> None:
        """A plan is thrown away, or its result is lost, or comes late, or after somebody's cancel."""
        plan = self.plan()
        if plan is None or not plan.chunks:
            return
        fates = ("unexecuted", "lost", "late", "too late", "overtaken", "overtaken", "cancelled")
        fate = self.rng.choice(fates)
        self.seen[fate] += 1
        if fate == "unexecuted":
            return
        result = self.runner.execute(plan)
        self.seen["steps"] += 1
        if fate == "lost":
            return
        if fate.endswith("late"):
            # The next plans are made, and executed, before this result is known.
            flying = [(plan, result)]
            for _ in range(1 + (fate == "too late")):
                after = self.plan()
                if after is not None and after.needs_runner:
                    flying.append((after, self.runner.execute(after)))
            if self.rng.random() < 0.3:
                flying.reverse()
            for flight in flying:
                self.take(self.scheduler.apply(*flight, self.now))
            return
        if fate == "overtaken":
            # The next plan is made before this result is known, and thrown away.
            self.plan()
        else:
            self.cancel()
        self.take(self.scheduler.apply(plan, result, self.now))

    def take(self, emissions: tuple[Emission, ...]) -> None:
        for emission in emissions:
            self.hear(emission)

    def step(self) -> bool:
        """One step of the loop; whether there was one."""
        plan = self.plan()
        if plan is None:
            self.now += 0.05
            return False
        self.scheduler.check()
        self.seen.update(
            out=len(plan.swaps_out),
            back=len(plan.swaps_in),
            copied=len(plan.copies),
            hits=sum(c.start > 0 for c in plan.chunks),
        )
        if not plan.needs_runner:
            emissions = self.scheduler.apply(plan, StepResult(plan.step, (), 0.0), self.now)
        else:
            result = self.runner.execute(plan)
            self.seen["steps"] += 1
            self.now += result.elapsed_seconds
            emissions = self.scheduler.apply(plan, result, self.now)
        self.take(emissions)
        return True

    def plan(self) -> StepPlan | None:
        """[S1, S4, S5, S7, S13, B4] The next plan, within all limits; none only when nobody can get on.

        The engine sleeps then until a call comes: work that waits for nothing but a step would wait for ever.
        """
        plan = self.scheduler.plan(self.now)
        if plan is None:
            assert self.held or not self.live, "nothing is planned, and nothing is to come"
            return None
        keys = [chunk.key for chunk in plan.chunks]
        assert len(keys) == len(set(keys)) <= self.limits.max_sequences
        assert plan.new_tokens <= self.limits.max_step_tokens
        slots = [
            (chunk.block_table[position // self.ledger.block_size], position % self.ledger.block_size)
            for chunk in plan.chunks
            for position in range(chunk.start, chunk.start + len(chunk.token_ids))
        ]
        assert len(slots) == len(set(slots))
        for key in keys:
            spec = self.told[key.request_id].spec
            assert spec.deadline_seconds is None or spec.is_demotable or self.now < spec.deadline_seconds
        happened = self.happened_in(plan.step)
        starts = [e.priority for e in happened if e.happening in (Happening.STARTED, Happening.RESUMED)]
        victims = [e.priority for e in happened if e.happening in (Happening.SWAPPED, Happening.RECOMPUTED)]
        assert not victims or not starts or (starts[0] < min(victims) and len(starts) == 1)
        return plan

    def happened_in(self, step: int) -> list[RequestEvent]:
        """The latest events, back to this step's first."""
        return list(itertools.takewhile(lambda e: e.step >= step, reversed(self.scheduler.timeline.events)))

    def hear(self, emission: Emission) -> None:
        """[O1, O2, O3, S15] Each token once, in order, the right one; one end, after the last."""
        told = self.told[emission.key.request_id]
        assert told.end is None
        assert emission.token_id is None or not told.is_cancelled
        if emission.token_id is not None:
            assert emission.token_index == len(told.tokens)
            told.tokens.append(emission.token_id)
            assert tuple(told.tokens) == told.answer[: len(told.tokens)]
        told.end = emission.finish_reason
        if told.end in (FinishReason.STOP, FinishReason.LENGTH):
            assert tuple(told.tokens) == told.answer

    def finish(self) -> None:
        """[S5, S6, B1, B9] Everybody ends in bounded time, nobody gave way too often, everything is back."""
        self.unhold()
        idle = 0
        for _ in range(400 * (1 + len(self.live))):
            if not self.scheduler.has_work:
                break
            idle = 0 if self.step() else idle + 1
            assert idle < 40, "nothing moves"
            self.scheduler.check()
        assert not self.live, f"{len(self.live)} requests never end"
        for _ in range(3):
            self.step()
        self.scheduler.check()
        ledger = self.ledger
        assert (ledger.used_blocks, ledger.swapping_blocks, ledger.limbo_blocks) == (0, 0, 0)
        assert self.pool.free_slots == self.pool.slot_count
        moved = (Happening.SWAPPED, Happening.RECOMPUTED)
        gave_way = Counter(e.key for e in self.scheduler.timeline.events if e.happening in moved)
        assert max(gave_way.values(), default=0) <= self.max_preemptions
        self.seen.update(
            preemptions=sum(self.memory.preemptions.values()),
            evictions=self.ledger.cache.evicted_blocks,
            forked=self.memory.forks.shared_tokens,
            deferred=self.memory.giving_way.deferred,
        )
