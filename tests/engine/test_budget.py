"""A step's budget in predicted time: who is in it, how long it gets, and that every delay ends."""

from __future__ import annotations

import random
from collections import Counter
from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.engine.blocks import BlockLedger
from headway.engine.cost_model import CostModel, shape_of
from headway.engine.limits import StepLimits
from headway.engine.policy import Fcfs
from headway.engine.scheduler import Scheduler
from headway.engine.values import Objective, RequestKey, RequestSpec, Sampled, Sampling, StepPlan, StepResult

BASE, PER_TOKEN = 0.010, 0.001


def seconds_of(plan: StepPlan) -> float:
    return BASE + PER_TOKEN * plan.new_tokens


def trained_cost() -> CostModel:
    cost = CostModel()
    rng = random.Random(1)
    for size in range(200):
        # Starts and sizes are independent, or the fit could not tell context from tokens.
        chunk = (rng.randrange(400), rng.randrange(2, 70))
        mixed = shape_of([chunk, *[(rng.randrange(400), 1)] * rng.randrange(8)])
        decodes = shape_of([(rng.randrange(400), 1)] * (1 + size % 20))
        cost.observe(mixed, BASE + PER_TOKEN * mixed.new_tokens)
        cost.observe(decodes, BASE + PER_TOKEN * decodes.new_tokens)
    assert cost.is_trusted
    return cost


TRAINED = trained_cost()


def make_scheduler(limits: StepLimits, cost: CostModel | None = None) -> Scheduler:
    ledger = BlockLedger(4096, 16)
    return Scheduler(ledger, limits, Fcfs(), frozenset(), cost=cost or deepcopy(TRAINED))


def spec(
    name: str, prompt: int = 4, max_tokens: int = 100, arrival: float = 0.0, tpot: float | None = None
) -> RequestSpec:
    objective = None if tpot is None else Objective(1.0, tpot)
    return RequestSpec(
        name, 0, (1,) * prompt, Sampling(), max_tokens, arrival_seconds=arrival, objective=objective
    )


def step(scheduler: Scheduler, now: float) -> tuple[StepPlan, float]:
    plan = scheduler.plan(now)
    assert plan is not None
    taken = seconds_of(plan)
    sampled = tuple(Sampled(chunk.key, 7) for chunk in plan.chunks if chunk.samples)
    scheduler.apply(plan, StepResult(plan.step, sampled, taken), now + taken)
    scheduler.check()
    return plan, now + taken


def sizes(plan: StepPlan) -> dict[str, int]:
    return {chunk.key.request_id: len(chunk.token_ids) for chunk in plan.chunks}


def test_a_step_without_due_tokens_fills_the_longest_step_time() -> None:
    scheduler = make_scheduler(StepLimits(max_step_tokens=1000, max_step_seconds=0.2))
    scheduler.add(spec("a", prompt=5000))
    plan, _ = step(scheduler, 0.0)
    assert seconds_of(plan) == pytest.approx(0.2, rel=0.05)


def test_deep_in_a_long_prompt_chunks_get_shorter_so_that_the_time_is_kept() -> None:
    limits = StepLimits(max_step_tokens=1000, max_step_seconds=0.2, min_chunk_tokens=8)
    scheduler = make_scheduler(limits, CostModel())
    scheduler.add(spec("warm", prompt=20_000, max_tokens=1))
    scheduler.add(spec("book", prompt=20_000, max_tokens=1))
    now, chunks = 0.0, list[int]()
    while scheduler.has_work:
        plan = scheduler.plan(now)
        assert plan is not None
        work = sum(len(c.token_ids) * (c.start + len(c.token_ids) / 2) for c in plan.chunks)
        taken = BASE + PER_TOKEN / 10 * plan.new_tokens + 1e-8 * work
        sampled = tuple(Sampled(chunk.key, 7) for chunk in plan.chunks if chunk.samples)
        now += taken
        scheduler.apply(plan, StepResult(plan.step, sampled, taken), now)
        chunks.append(plan.new_tokens)
        assert len(chunks) < 30 or taken <= 0.2 * 1.1
    assert min(chunks[30:-2]) < 800 < max(chunks)


def test_the_token_due_first_ends_the_step_in_time() -> None:
    scheduler = make_scheduler(StepLimits(max_step_tokens=1000, max_step_seconds=0.5))
    scheduler.add(spec("chat", tpot=0.1))
    _, now = step(scheduler, 0.99)  # its first token is just in time: no slack is saved up
    scheduler.add(spec("book", prompt=5000, arrival=now))
    plan, _ = step(scheduler, now)
    assert sizes(plan)["chat"] == 1
    assert 0.08 <= seconds_of(plan) <= 0.105


def test_a_decode_with_slack_makes_room_for_a_prefill_and_is_left_out_only_so_often() -> None:
    limits = StepLimits(max_step_tokens=64, max_step_seconds=0.06, min_chunk_tokens=8, max_skipped_steps=3)
    scheduler = make_scheduler(limits)
    scheduler.add(spec("patient", tpot=50.0))
    _, now = step(scheduler, 0.0)
    scheduler.add(spec("book", prompt=4000, arrival=now))
    seen: list[bool] = []
    for _ in range(16):
        plan, now = step(scheduler, now)
        assert seconds_of(plan) <= 0.06 * 1.05
        seen.append("patient" in sizes(plan))
    assert seen == [False, False, False, True] * 4


def test_a_prefill_gets_its_floor_even_when_every_token_is_late() -> None:
    scheduler = make_scheduler(StepLimits(max_step_tokens=256, min_chunk_tokens=32, min_step_seconds=0.001))
    for place in range(20):
        scheduler.add(spec(f"chat{place}", tpot=0.001))
    _, now = step(scheduler, 100.0)
    scheduler.add(spec("book", prompt=1000))
    plan, _ = step(scheduler, now)
    assert sizes(plan)["book"] == 32
    assert len(plan.chunks) == 21


def test_for_late_tokens_a_step_is_not_planned_shorter_than_the_least_length() -> None:
    limits = StepLimits(max_step_tokens=1000, max_step_seconds=0.5, min_step_seconds=0.1, min_chunk_tokens=8)
    scheduler = make_scheduler(limits)
    scheduler.add(spec("chat", tpot=0.001))
    _, now = step(scheduler, 100.0)
    scheduler.add(spec("book", prompt=5000, arrival=now))
    plan, _ = step(scheduler, now)
    assert seconds_of(plan) == pytest.approx(0.1, rel=0.1)


def test_decodes_without_a_due_time_do_not_wait_for_a_prefill_longer_than_the_longest_gap() -> None:
    scheduler = make_scheduler(StepLimits(max_step_tokens=1000, max_gap_seconds=0.1))
    scheduler.add(spec("chat"))
    _, now = step(scheduler, 0.0)
    scheduler.add(spec("book", prompt=5000, arrival=now))
    plan, _ = step(scheduler, now)
    assert sizes(plan)["chat"] == 1
    assert seconds_of(plan) == pytest.approx(0.1, rel=0.1)


def test_where_decodes_alone_take_longer_than_that_prefills_get_as_much_of_a_step_as_they() -> None:
    scheduler = make_scheduler(StepLimits(max_step_tokens=1000, max_gap_seconds=0.001, min_chunk_tokens=8))
    for place in range(20):
        scheduler.add(spec(f"chat{place}"))
    _, now = step(scheduler, 0.0)
    alone, now = step(scheduler, now)
    scheduler.add(spec("book", prompt=5000, arrival=now))
    plan, _ = step(scheduler, now)
    assert len(plan.chunks) == 21
    assert seconds_of(plan) == pytest.approx(2 * seconds_of(alone), rel=0.1)


def test_a_late_token_does_not_make_all_later_ones_late() -> None:
    scheduler = make_scheduler(StepLimits(max_step_tokens=1000, max_step_seconds=0.5))
    scheduler.add(spec("chat", tpot=0.2))
    _, now = step(scheduler, 60.0)  # started a minute late
    scheduler.add(spec("book", prompt=5000, arrival=now))
    plan, _ = step(scheduler, now)
    assert seconds_of(plan) == pytest.approx(0.2, rel=0.1)


def test_a_device_that_takes_as_long_for_one_token_as_for_many_computes_many() -> None:
    # A slow start-up per step and a little noise: by the fit tokens cost nothing, and no step is in time.
    cost, rng = CostModel(), random.Random(5)
    while not (cost.is_trusted and cost.marginal_seconds(0, 64) == 0.0):
        size = rng.randint(2, 200)
        cost.observe(shape_of([(0, size)]), 1.0 - 0.001 * size + 0.02 * rng.random())
    assert cost.step_seconds() > StepLimits().max_step_seconds
    scheduler = make_scheduler(StepLimits(max_step_tokens=256), cost)
    scheduler.add(spec("a", prompt=5000))
    plan, _ = step(scheduler, 0.0)
    assert plan.new_tokens == 256


def test_without_trust_in_the_model_tokens_are_the_budget() -> None:
    scheduler = make_scheduler(StepLimits(max_step_tokens=256, max_step_seconds=0.01), CostModel())
    scheduler.add(spec("a", prompt=5000))
    plan, _ = step(scheduler, 0.0)
    assert plan.new_tokens == 256


def test_without_trust_in_the_model_a_step_has_as_many_tokens_as_lately_took_as_long_as_it_may() -> None:
    limits = StepLimits(max_step_tokens=256, max_sequences=16, max_gap_seconds=0.1, min_chunk_tokens=8)
    cost = CostModel()
    cost.observe(shape_of([(0, 200)]), 200 * PER_TOKEN)
    assert not cost.is_trusted
    scheduler = make_scheduler(limits, cost)
    scheduler.add(spec("a", prompt=5000))
    plan, now = step(scheduler, 0.0)
    assert plan.new_tokens == pytest.approx(100, abs=1)
    scheduler.set_limits(replace(limits, max_step_seconds=0.01, max_gap_seconds=0.01))
    plan, _ = step(scheduler, now)
    assert plan.new_tokens == 16 + 8


def test_a_small_step_that_took_long_makes_no_later_one_smaller() -> None:
    cost = CostModel()
    cost.observe(shape_of([(0, 5)]), 1.0)
    scheduler = make_scheduler(StepLimits(max_step_tokens=256, max_sequences=16), cost)
    scheduler.add(spec("a", prompt=5000))
    plan, _ = step(scheduler, 0.0)
    assert plan.new_tokens == 256


def test_several_long_prompts_prefill_side_by_side_within_the_time() -> None:
    scheduler = make_scheduler(StepLimits(max_step_tokens=1000, max_step_seconds=0.1, min_chunk_tokens=8))
    for name in "abc":
        scheduler.add(spec(name, prompt=2000))
    plan, _ = step(scheduler, 0.0)
    assert len(plan.chunks) == 3
    assert max(sizes(plan).values()) <= 2 * min(sizes(plan).values())


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(
        st.tuples(st.integers(1, 300), st.none() | st.floats(0.02, 5.0)), min_size=1, max_size=12
    ),
    longest=st.floats(0.03, 0.5),
    skips=st.integers(1, 4),
)
def test_time_is_kept_or_the_step_is_minimal_and_nobody_waits_longer_than_promised(
    prompts: list[tuple[int, float | None]], longest: float, skips: int
) -> None:
    limits = StepLimits(
        max_step_tokens=64,
        max_sequences=12,
        min_chunk_tokens=4,
        max_step_seconds=longest,
        max_skipped_steps=skips,
    )
    scheduler = make_scheduler(limits)
    for place, (prompt, tpot) in enumerate(prompts):
        scheduler.add(spec(f"r{place}", prompt=prompt, max_tokens=12, tpot=tpot))
    now, absent = 0.0, Counter[str]()
    decoding: set[str] = set()
    while scheduler.has_work:
        plan, after = step(scheduler, now)
        prefill = sum(len(c.token_ids) for c in plan.chunks if len(c.token_ids) > 1)
        assert seconds_of(plan) <= longest * 1.05 or prefill <= 4
        for name in decoding:
            absent[name] = 0 if name in sizes(plan) else absent[name] + 1
            assert absent[name] <= skips
        for chunk in plan.chunks:
            if chunk.samples:
                decoding.add(chunk.key.request_id)
        decoding -= {name for name in decoding if scheduler.announce(RequestKey(name, 0)) is None}
        now = after
