"""Continuous batching on the real runner: requests join and leave between iterations, on a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
import torch
from tests.engine.test_torch_runner import CONFIG, RandomCheckpoint

from headway.engine.engine import Engine
from headway.engine.limits import StepLimits
from headway.engine.policy import Fcfs
from headway.engine.scripted import ByteTokenizer, StepCost
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import FinishReason, RequestSpec, Sampling, StepPlan, StepResult

BLOCK_SIZE = 4
MODEL = replace(CONFIG, vocab_size=ByteTokenizer.vocab_size, max_position=256)
LIMITS = StepLimits(max_step_tokens=48, max_sequences=16, min_chunk_tokens=8)
COST = StepCost(per_step=0.010, per_new_token=0.001)
GREEDY = Sampling(temperature=0, ignore_eos=True)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: on shared cores, more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Recorded:
    """The runner itself, with a record of its plans; each moves the clock by what a step would cost."""

    def __init__(self) -> None:
        self._runner = TorchRunner.load(
            RandomCheckpoint(MODEL), dtype="float32", kv_cache_bytes=600_000, block_size=BLOCK_SIZE
        )
        self.block_count = self._runner.block_count
        self.block_size = self._runner.block_size
        self.block_bytes = self._runner.block_bytes
        self.host_slots = self._runner.host_slots
        self.max_model_len = self._runner.max_model_len
        self.vocab_size = self._runner.vocab_size
        self.eos_token_ids = self._runner.eos_token_ids
        self.plans: list[StepPlan] = []
        self.now = 0.0

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        self.now += COST(plan)
        return self._runner.execute(plan)


class Batch:
    """An engine on that runner, and what came out of it."""

    def __init__(self) -> None:
        self.runner = Recorded()
        self.engine = Engine(self.runner, ByteTokenizer(), limits=LIMITS, policy=Fcfs())
        self.tokens: dict[str, tuple[int, ...]] = {}
        self.ended: list[str] = []

    def add(self, *specs: RequestSpec) -> None:
        for spec in specs:
            self.engine.add(replace(spec, arrival_seconds=self.runner.now))

    def step(self) -> None:
        for output in self.engine.step(self.runner.now):
            name = output.key.request_id
            self.tokens[name] = self.tokens.get(name, ()) + output.token_ids
            if output.finish_reason is not None:
                self.ended.append(name)
        self.engine.check_books()

    def run(self) -> None:
        while self.engine.has_work:
            self.step()

    @property
    def members(self) -> list[set[str]]:
        """Who was computed in each step."""
        return [{chunk.key.request_id for chunk in plan.chunks} for plan in self.runner.plans]


def request(name: str, prompt: int, max_tokens: int) -> RequestSpec:
    return RequestSpec(name, 0, tuple(Random(name).choices(range(256), k=prompt)), GREEDY, max_tokens)


LONG = tuple(request(f"long{place}", 5 + 9 * place, 90 - 6 * place) for place in range(8))
"""Prompts of 5 to 68 tokens, answers of 90 to 48: the longer the one, the shorter the other."""
SHORT = request("short", 6, 5)


def test_a_short_request_that_arrives_late_joins_between_two_steps_and_leaves_before_the_long_ones() -> None:
    batch = Batch()
    batch.add(*LONG)
    while not all(len(batch.tokens.get(spec.request_id, ())) > 3 for spec in LONG):
        batch.step()
    joined = len(batch.runner.plans)
    batch.add(SHORT)
    batch.run()
    everyone = {spec.request_id for spec in LONG}
    left = joined + SHORT.max_tokens
    assert batch.members[joined - 1] == everyone
    assert all(members == everyone | {"short"} for members in batch.members[joined:left])
    assert batch.members[left] == everyone
    assert [key.request_id for key in batch.runner.plans[left].released] == ["short"]
    assert batch.ended[0] == "short"
    assert sorted(batch.ended[1:]) == sorted(everyone)
    assert batch.engine.load.kv_blocks_used == 0


def test_the_company_in_a_batch_changes_no_answer() -> None:
    together = Batch()
    together.add(*LONG)
    for _ in range(12):
        together.step()
    together.add(SHORT)
    together.run()
    for spec in (*LONG, SHORT):
        alone = Batch()
        alone.add(spec)
        alone.run()
        assert together.tokens[spec.request_id] == alone.tokens[spec.request_id]
        assert len(alone.tokens[spec.request_id]) == spec.max_tokens


@pytest.mark.parametrize("steps", [1, 4, 20])
def test_a_request_cancelled_midway_frees_its_blocks_within_two_steps(steps: int) -> None:
    """After 1 step most prompts are still being computed, after 20 all answers have begun."""
    batch = Batch()
    batch.add(*LONG)
    for _ in range(steps):
        batch.step()
    victim = LONG[7].request_id
    batch.engine.cancel(victim, FinishReason.CANCELLED)
    stopped = len(batch.runner.plans)
    batch.step()
    batch.step()
    assert batch.ended == [victim]
    assert not any(victim in members for members in batch.members[stopped:])
    assert batch.engine.load.kv_blocks_used == blocks_in_use(batch.runner.plans, victim)
    batch.run()
    assert batch.engine.load.kv_blocks_used == 0
    for spec in LONG[:7]:
        assert len(batch.tokens[spec.request_id]) == spec.max_tokens


def blocks_in_use(plans: list[StepPlan], without: str) -> int:
    """The blocks that the runner was last told of, over all requests but one."""
    tables = {chunk.key.request_id: chunk.block_table for plan in plans for chunk in plan.chunks}
    return sum(len(table) for name, table in tables.items() if name != without)


def test_choices_that_branch_off_one_prompt_answer_as_if_each_had_computed_it() -> None:
    first = replace(
        request("choice0", 18, 30), sampling=Sampling(temperature=1.0, seed=0, ignore_eos=True), tenant="a"
    )
    branches = [
        replace(first, request_id=f"choice{seed}", sampling=replace(first.sampling, seed=seed))
        for seed in (1, 2, 3)
    ]
    together = Batch()
    together.add(first, *[replace(branch, fork_of="choice0") for branch in branches])
    together.run()
    copied = [len(plan.copies) for plan in together.runner.plans]
    assert sum(copied) == 3, "17 of 18 tokens are shared: four blocks of 4, and one copied for each"
    assert sum(plan.new_tokens for plan in together.runner.plans) == 18 + 3 + 4 * 29
    for spec in (first, *branches):
        alone = Batch()
        alone.add(spec)
        alone.run()
        assert together.tokens[spec.request_id] == alone.tokens[spec.request_id]
    assert len(set(together.tokens.values())) == 4
