"""What users of other engines ran into with memory, as tests of the whole scheduler; numbers as in our notes.

Cases 12, 14, 16, 19, 21, 24 to 27, 37, 38 and 41 are in ``test_blocks``, ``test_prefix_cache``,
``test_host_pool``, ``test_preemption`` and ``test_host_cache`` under their numbers. The random walks of
``tests/simulation`` meet all of them again.
"""

from __future__ import annotations

import pytest

from headway.engine.blocks import BlockLedger
from headway.engine.checks import check_request
from headway.engine.cost_model import CostModel
from headway.engine.errors import ContextLengthError
from headway.engine.host_pool import HostPool
from headway.engine.limits import StepLimits
from headway.engine.memory import Memory
from headway.engine.policy import POLICIES
from headway.engine.preemption import Mode, PreemptionCosts, PreemptionLimits
from headway.engine.prefix_cache import PrefixCache
from headway.engine.scheduler import Scheduler
from headway.engine.scripted import ScriptedRunner, StepCost
from headway.engine.values import Emission, FinishReason, RequestSpec, Sampling, StepPlan, StepResult

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
    ) -> None:
        self.runner = ScriptedRunner(
            block_count=blocks,
            block_size=2,
            host_slots=slots,
            copy_delay=copy_delay,
            max_model_len=2 * blocks,
            cost=StepCost(per_step=0.01, per_new_token=0.001),
        )
        self.ledger = BlockLedger(blocks, 2, PrefixCache(2))
        cost = CostModel()
        self.memory = Memory(
            self.ledger,
            cost,
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
            cost=cost,
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
        self.now += 0.01
        for emission in self.scheduler.apply(plan, result, self.now):
            self.hear(emission)
        self.scheduler.check()

    def hear(self, emission: Emission) -> None:
        name = emission.key.request_id
        assert not self.ends[name], "nothing after the end"
        if emission.token_id is not None:
            assert emission.index == len(self.tokens[name]), "append only, no gap, no splice"
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


@pytest.mark.parametrize("slots", [0, 8], ids=["recompute", "swap"])
@pytest.mark.parametrize("copy_delay", [0, 2])
def test_case_22_an_answer_that_gave_way_is_extended_never_rewritten(slots: int, copy_delay: int) -> None:
    rig = Rig(slots=slots, copy_delay=copy_delay)
    specs = [rig.add(f"r{index}", first=10 * index) for index in range(4)]
    rig.run()
    assert rig.memory.preemptions[Mode.SWAP if slots else Mode.RECOMPUTE] > 0
    assert all(rig.is_right(spec) for spec in specs)
    assert all(ends == [FinishReason.LENGTH] for ends in rig.ends.values())
    assert rig.ledger.used_blocks == 0


def test_cases_16_and_17_a_request_as_large_as_the_pool_runs_and_one_larger_is_refused() -> None:
    rig = Rig(blocks=4)
    for prompt, max_tokens, fits in ((4, 3, True), (4, 4, True), (4, 5, False), (8, 1, False)):
        spec = RequestSpec("x", 1, tuple(range(prompt)), Sampling(temperature=0.0), max_tokens)
        if fits:
            check_request(spec, rig.runner)
            told = rig.add(f"{prompt}+{max_tokens}", prompt, max_tokens)
            rig.run()
            assert rig.is_right(told)
        else:
            with pytest.raises(ContextLengthError):
                check_request(spec, rig.runner)
    after = rig.add("after", 2, 3)
    rig.run()
    assert rig.is_right(after), "a refusal leaves the engine alive"


@pytest.mark.parametrize("slots", [0, 8], ids=["recompute", "swap"])
def test_cases_15_and_23_requests_that_cannot_all_grow_still_all_end(slots: int) -> None:
    rig = Rig(blocks=6, slots=slots, max_preemptions=1)
    specs = [rig.add(f"r{index}", 2, 10, first=10 * index) for index in range(6)]
    rig.run()
    assert all(rig.is_right(spec) for spec in specs)


@pytest.mark.parametrize("slots", [0, 8], ids=["recompute", "swap"])
def test_case_3_preemptions_of_one_request_are_bounded(slots: int) -> None:
    rig = Rig(slots=slots, max_preemptions=2)
    for index in range(8):
        rig.add(f"r{index}", first=10 * index)
    rig.run()
    assert 0 < rig.preemptions <= 2 * 8


@pytest.mark.parametrize("slots", [0, 8], ids=["recompute", "swap"])
@pytest.mark.parametrize("steps", range(10))
@pytest.mark.parametrize("planned", [False, True], ids=["between steps", "while a step runs"])
def test_case_18_a_cancel_in_any_phase_releases_once(slots: int, steps: int, planned: bool) -> None:
    rig = Rig(slots=slots, copy_delay=1)
    specs = [rig.add(f"r{index}", first=10 * index) for index in range(4)]
    for _ in range(steps):
        rig.step()
    plan = rig.plan() if planned else None
    for spec in specs[1:3]:
        rig.scheduler.cancel(spec.request_id, FinishReason.CANCELLED)
        rig.scheduler.cancel(spec.request_id, FinishReason.CANCELLED)
        rig.scheduler.check()
    if plan is not None:
        rig.apply(plan)
    rig.run()
    assert rig.is_right(specs[0])
    assert all(len(ends) == 1 for ends in rig.ends.values())
    rig.step()
    assert (rig.ledger.used_blocks, rig.ledger.limbo_blocks, rig.ledger.swapping_blocks) == (0, 0, 0)
    assert rig.memory.host.free_slots == slots


def test_case_20_a_request_that_just_ended_is_no_victim() -> None:
    rig = Rig(blocks=6)
    first = rig.add("first", 4, 2)
    second = rig.add("second", 4, 8, first=20)
    rig.run()
    assert rig.is_right(first)
    assert rig.is_right(second)
    assert len(rig.ends["first"]) == 1


@pytest.mark.parametrize("slots", [0, 16], ids=["recompute", "swap"])
def test_case_11_an_id_that_is_cancelled_and_comes_again_gets_only_its_own_tokens(slots: int) -> None:
    rig = Rig(slots=slots, copy_delay=1)
    rig.add("again", first=50)
    rig.add("other", first=20)
    for _ in range(4):
        rig.step()
    plan = rig.plan()
    assert plan is not None
    rig.scheduler.cancel("again", FinishReason.CANCELLED)
    anew = rig.add("again", first=70, epoch=2)
    rig.apply(plan)
    rig.run()
    assert rig.is_right(anew)


def test_case_36_what_is_recomputed_after_a_preemption_is_no_cache_hit() -> None:
    rig = Rig()
    for index in range(4):
        rig.add(f"r{index}", first=10 * index)
    rig.run()
    load = rig.scheduler.load.extra
    assert rig.preemptions > 0
    assert load["preemption_lost_tokens"] > 0
    assert (load["prefix_hit_tokens"], load["prefix_lookup_tokens"]) == (0, 16)
    again = rig.add("again", first=30)
    rig.run()
    assert rig.is_right(again)
    load = rig.scheduler.load.extra
    assert load["prefix_hit_tokens"] <= load["prefix_lookup_tokens"] == 20


def test_case_1_a_better_class_takes_the_last_place_of_a_lower_one_but_equals_never_do() -> None:
    rig = Rig(sequences=1, blocks=16, policy="priority")
    low = rig.add("low", priority=2)
    rig.step()
    equal = rig.add("equal", priority=2, first=30)
    rig.step()
    assert rig.preemptions == 0
    high = rig.add("high", priority=0, first=60)
    rig.step()
    rig.step()
    assert rig.preemptions == 1
    assert len(rig.tokens["high"]) > 0
    rig.run()
    assert all(rig.is_right(spec) for spec in (low, equal, high))


def test_case_32_a_storm_of_cancels_leaves_a_healthy_engine() -> None:
    rig = Rig(slots=8, copy_delay=2)
    for wave in range(10):
        for index in range(6):
            rig.add(f"w{wave}-{index}", first=10 * index)
        rig.step()
        rig.step()
        for index in range(6):
            rig.scheduler.cancel(f"w{wave}-{index}", FinishReason.CANCELLED)
        rig.scheduler.check()
    rig.run()
    normal = rig.add("normal")
    rig.run()
    assert rig.is_right(normal)
    assert rig.memory.host.free_slots == 8


@pytest.mark.parametrize("fate", ["unexecuted", "lost"])
@pytest.mark.parametrize("copy_delay", [0, 1, 2])
def test_a_swap_whose_plan_is_dropped_is_done_once_more_and_waited_for(fate: str, copy_delay: int) -> None:
    rig = Rig(slots=8, copy_delay=copy_delay)
    specs = [rig.add(f"r{index}", first=10 * index) for index in range(4)]
    dropped = 0
    for _ in range(300):
        plan = rig.plan()
        if plan is not None and plan.has_copies and dropped < 20:
            dropped += 1
            if fate == "lost":
                rig.runner.execute(plan)
            plan = rig.plan()
        if plan is not None:
            rig.apply(plan)
        if not rig.scheduler.has_work:
            break
    assert dropped > 2
    assert all(rig.is_right(spec) for spec in specs)


def test_what_recomputing_costs_is_not_taken_for_nothing_before_it_is_known() -> None:
    rig = Rig(slots=8)
    for index in range(4):
        rig.add(f"r{index}", first=10 * index)
    rig.run()
    assert rig.memory.preemptions[Mode.SWAP] > 0
    assert rig.memory.preemptions[Mode.RECOMPUTE] == 0
