"""Requests join and leave between iterations, on a virtual clock; no batch or chunk changes an answer."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.engine.engine import Engine
from headway.engine.limits import StepLimits
from headway.engine.policy import Fcfs, Policy, Priority
from headway.engine.scripted import ByteTokenizer, ScriptedRunner, StepCost
from headway.engine.values import FinishReason, RequestSpec, Sampling

COST = StepCost(per_step=0.010, per_new_token=0.001, per_context_token=0.00001)


@dataclass
class Simulation:
    """An engine on a clock that only its own steps and the gaps between arrivals move."""

    limits: StepLimits = field(default_factory=StepLimits)
    policy: Policy = field(default_factory=Fcfs)
    block_count: int = 512
    now: float = 0.0

    def __post_init__(self) -> None:
        self.runner = ScriptedRunner(
            block_count=self.block_count, max_model_len=8192, cost=COST, sleep=self.sleep
        )
        self.runner.steps = []
        self.engine = Engine(self.runner, ByteTokenizer(), limits=self.limits, policy=self.policy)
        self.first_token: dict[str, float] = {}
        self.finished: dict[str, float] = {}
        self.tokens: dict[str, tuple[int, ...]] = {}

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def step(self) -> None:
        for output in self.engine.step(self.now):
            name = output.key.request_id
            self.tokens[name] = self.tokens.get(name, ()) + output.token_ids
            self.first_token.setdefault(name, self.now)
            if output.finish_reason is not None:
                self.finished[name] = self.now
        self.engine.check_books()

    def run(self, arrivals: list[tuple[float, RequestSpec]]) -> None:
        """Let each request arrive at its time, and run until all have ended."""
        coming = sorted(arrivals, key=lambda arrival: arrival[0])
        while coming or self.engine.has_work:
            if coming and not self.engine.has_work:
                self.now = max(self.now, coming[0][0])
            while coming and coming[0][0] <= self.now:
                arrival, spec = coming.pop(0)
                self.engine.add(replace(spec, arrival_seconds=arrival))
            self.step()

    def in_plan(self, name: str) -> list[int]:
        """The steps whose plans held the request."""
        assert self.runner.steps is not None
        return [plan.step for plan in self.runner.steps if any(c.key.request_id == name for c in plan.chunks)]


def request(name: str, prompt: int, max_tokens: int, priority: int = 1) -> RequestSpec:
    prompt_token_ids = tuple(random.Random(name).choices(range(256), k=prompt))
    return RequestSpec(name, 0, prompt_token_ids, Sampling(temperature=0), max_tokens, priority=priority)


def test_a_late_short_request_finishes_before_the_long_ones_that_came_first() -> None:
    simulation = Simulation()
    long = [(0.0, request(f"long{place}", 20 + 40 * place, 150 + 10 * place)) for place in range(8)]
    simulation.run([*long, (2.0, request("short", 10, 8))])
    assert simulation.finished["short"] < min(simulation.finished[f"long{place}"] for place in range(8))
    # It joined while all others were running, and left while all of them went on.
    mine = simulation.in_plan("short")
    assert mine == list(range(mine[0], mine[0] + 8))
    for place in range(8):
        theirs = simulation.in_plan(f"long{place}")
        assert theirs[0] < mine[0]
        assert mine[-1] < theirs[-1]


def test_decodes_go_on_in_every_step_while_a_long_prompt_is_computed() -> None:
    simulation = Simulation(limits=StepLimits(max_step_tokens=64, max_sequences=8))
    simulation.run([(0.0, request("chat", 8, 100)), (0.1, request("book", 3000, 4))])
    chat = simulation.in_plan("chat")
    assert chat == list(range(chat[0], chat[0] + 100))
    assert simulation.first_token["book"] > simulation.first_token["chat"]


def test_short_prompts_do_not_wait_for_a_long_one_in_front_of_them() -> None:
    simulation = Simulation(limits=StepLimits(max_step_tokens=128, max_sequences=16, min_chunk_tokens=16))
    shorts = [(0.0, request(f"short{place}", 30, 4)) for place in range(6)]
    simulation.run([(0.0, request("book", 6000, 4)), *shorts])
    steps = simulation.in_plan("book")
    assert all(simulation.in_plan(f"short{place}")[-1] < steps[0] + 15 for place in range(6))
    assert len(steps) > 45


def test_a_better_class_overtakes_in_the_line_but_nobody_is_lost() -> None:
    simulation = Simulation(limits=StepLimits(max_sequences=2), policy=Priority())
    batch = [(0.0, request(f"batch{place}", 20, 30, priority=2)) for place in range(10)]
    simulation.run([*batch, (0.5, request("interactive", 20, 30, priority=0))])
    before = [name for name, end in simulation.finished.items() if end < simulation.finished["interactive"]]
    assert len(before) <= 4
    assert len(simulation.finished) == 11


def test_a_large_request_is_not_starved_by_an_endless_stream_of_small_ones() -> None:
    """Blocks never come free at once here; without the bound on passing it would start after the stream."""
    simulation = Simulation(block_count=32, limits=StepLimits(max_passes=20))
    small = [(0.05 * place, request(f"small{place}", 16, 48)) for place in range(300)]
    simulation.run([*small, (1.0, request("large", 200, 300))])
    later = [name for name, end in simulation.finished.items() if end > simulation.finished["large"]]
    assert len(later) > 200


def test_a_request_cancelled_midway_frees_its_blocks_within_two_steps() -> None:
    simulation = Simulation()
    simulation.engine.add(request("stays", 40, 100))
    simulation.engine.add(request("goes", 400, 100))
    for _ in range(10):
        simulation.step()
    simulation.engine.cancel("goes", FinishReason.CANCELLED)
    simulation.step()
    simulation.step()
    assert simulation.engine.load.kv_blocks_used == -(-(40 + 11) // 16)
    assert simulation.finished.keys() == {"goes"}


@pytest.fixture(scope="module")
def mixed() -> list[RequestSpec]:
    lengths = random.Random(7)
    return [request(f"r{place}", lengths.randint(1, 90), lengths.randint(1, 40)) for place in range(12)]


def alone(spec: RequestSpec) -> tuple[int, ...]:
    return ScriptedRunner().reference(spec.prompt_token_ids, spec.sampling, spec.max_tokens)


@pytest.mark.parametrize("max_step_tokens", [4, 7, 32, 512])
@pytest.mark.parametrize("min_chunk_tokens", [1, 5, 64])
def test_no_chunk_size_changes_an_answer(
    mixed: list[RequestSpec], max_step_tokens: int, min_chunk_tokens: int
) -> None:
    limits = StepLimits(max_step_tokens=max_step_tokens, max_sequences=4, min_chunk_tokens=min_chunk_tokens)
    simulation = Simulation(limits=limits)
    simulation.run([(0.0, spec) for spec in mixed])
    assert simulation.tokens == {spec.request_id: alone(spec) for spec in mixed}


@settings(max_examples=25, deadline=None)
@given(
    gaps=st.lists(st.floats(0, 0.3), min_size=12, max_size=12),
    sequences=st.integers(1, 12),
    block_count=st.integers(9, 40),
)
def test_no_arrival_order_batch_or_pool_size_changes_an_answer(
    mixed: list[RequestSpec], gaps: list[float], sequences: int, block_count: int
) -> None:
    simulation = Simulation(
        limits=StepLimits(max_step_tokens=48, max_sequences=sequences), block_count=block_count
    )
    simulation.run([(sum(gaps[:place]), spec) for place, spec in enumerate(mixed)])
    assert simulation.tokens == {spec.request_id: alone(spec) for spec in mixed}


def test_the_same_arrivals_give_the_same_schedule() -> None:
    def schedule() -> list[object]:
        simulation = Simulation(block_count=40, policy=Priority())
        simulation.run([(0.02 * p, request(f"r{p}", 5 + p % 30, 3 + p % 11, p % 3)) for p in range(60)])
        return [simulation.runner.steps, simulation.finished]

    assert schedule() == schedule()
