"""A scheduler on a pool that is too small, and the toy runner, whose every answer can be foretold."""

from __future__ import annotations

from headway.engine.blocks import BlockLedger
from headway.engine.cost_model import CostModel
from headway.engine.host_pool import HostPool
from headway.engine.limits import StepLimits
from headway.engine.memory import Memory
from headway.engine.policy import POLICIES
from headway.engine.preemption import PreemptionCosts, PreemptionLimits
from headway.engine.prefix_cache import PrefixCache
from headway.engine.scheduler import Scheduler
from headway.engine.scripted import ScriptedRunner, StepCost
from headway.engine.values import Emission, FinishReason, RequestSpec, Sampling, StepPlan, StepResult

STEP = StepCost(per_step=0.01, per_new_token=0.001)
CHEAP_SWAPS = PreemptionCosts(1.0, 1e12, 1e12, seconds_per_token=1.0)
NO_SWAPS = PreemptionCosts(1.0, 1e-9, 1e-9)


class Rig:
    """The real scheduler, overcommitted, on a pool of ``blocks`` blocks of 2 tokens."""

    def __init__(
        self,
        *,
        blocks: int = 8,
        slots: int = 0,
        sequences: int = 8,
        policy: str = "fcfs",
        copy_delay: int = 0,
        max_preemptions: int = 3,
        has_cache: bool = True,
        cost: StepCost = STEP,
    ) -> None:
        self.runner = ScriptedRunner(
            block_count=blocks,
            block_size=2,
            host_slots=slots,
            copy_delay=copy_delay,
            max_model_len=2 * blocks,
            cost=cost,
        )
        self.ledger = BlockLedger(blocks, 2, PrefixCache(2, is_enabled=has_cache))
        self.cost = CostModel()
        self.memory = Memory(
            self.ledger,
            self.cost,
            is_overcommitted=True,
            host=HostPool(self.ledger, slots),
            costs=CHEAP_SWAPS if slots else NO_SWAPS,
            limits=PreemptionLimits(max_preemptions=max_preemptions, headroom_tokens=0, watermark=0.0),
        )
        # Answers are expected to stay short, so many are admitted; then they do not.
        for _ in range(8):
            self.memory.quantiles.observe("default", 1)
        limits = StepLimits(max_step_tokens=64, max_sequences=sequences, is_overcommitted=True)
        self.scheduler = Scheduler(
            self.ledger,
            limits,
            POLICIES[policy](),
            self.runner.eos_token_ids,
            cost=self.cost,
            memory=self.memory,
        )
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, list[FinishReason]] = {}
        self.now = 0.0

    def add(
        self,
        name: str,
        prompt: int = 4,
        max_tokens: int = 8,
        *,
        first: int = 0,
        priority: int = 1,
        epoch: int = 1,
    ) -> RequestSpec:
        spec = RequestSpec(
            name,
            epoch,
            tuple(range(first, first + prompt)),
            Sampling(temperature=0.0),
            max_tokens,
            priority=priority,
            arrival_seconds=self.now,
        )
        self.scheduler.add(spec)
        self.tokens[name] = []
        self.ends[name] = []
        return spec

    def plan(self) -> StepPlan | None:
        plan = self.scheduler.plan(self.now)
        self.scheduler.check()
        return plan

    def apply(self, plan: StepPlan) -> None:
        result = self.runner.execute(plan) if plan.needs_runner else StepResult(plan.step, (), 0.0)
        self.hear_all(plan, result)

    def hear_all(self, plan: StepPlan, result: StepResult) -> None:
        self.now += 0.01
        for emission in self.scheduler.apply(plan, result, self.now):
            self.hear(emission)
        self.scheduler.check()

    def hear(self, emission: Emission) -> None:
        name = emission.key.request_id
        assert not self.ends[name], "nothing after the end"
        if emission.token_id is not None:
            assert emission.token_index == len(self.tokens[name]), "append only, no gap, no splice"
            self.tokens[name].append(emission.token_id)
        if emission.finish_reason is not None:
            self.ends[name].append(emission.finish_reason)

    def step(self) -> StepPlan | None:
        plan = self.plan()
        if plan is not None:
            self.apply(plan)
        return plan

    def run(self, steps: int = 300) -> None:
        for _ in range(steps):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError(f"still at work after {steps} steps")

    def is_right(self, spec: RequestSpec) -> bool:
        answer = self.runner.reference(spec.prompt_token_ids, spec.sampling, spec.max_tokens)
        return tuple(self.tokens[spec.request_id]) == answer

    @property
    def preemptions(self) -> int:
        return sum(self.memory.preemptions.values())
