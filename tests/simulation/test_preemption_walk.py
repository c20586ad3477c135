"""Under memory pressure every request ends in bounded time with the answer it would have had alone.

[S1-S5, S15, O1, O2, B1, B9] with overcommit, a prefix cache, late swaps, holds, cancels and deadlines.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.preemption_world import CHEAP_SWAPS, NO_SWAPS, PreemptionWorld

from headway.engine.preemption import PreemptionCosts

POLICIES = ("fair", "fcfs", "priority")


def walk(rng: random.Random, operations: int, costs: PreemptionCosts) -> Counter[str]:
    world = PreemptionWorld(
        rng,
        block_count=rng.randint(3, 12),
        block_size=rng.randint(1, 4),
        slots=rng.choice((0, 4, 12)),
        copy_delay=rng.randint(0, 2),
        policy=rng.choice(POLICIES),
        costs=costs,
        max_preemptions=rng.randint(0, 3),
    )
    for _ in range(operations):
        world.act()
    world.finish()
    return world.seen


@given(rng=st.randoms(use_true_random=False), operations=st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_any_short_walk_ends_with_the_right_answers(rng: random.Random, operations: int) -> None:
    walk(rng, operations, rng.choice((CHEAP_SWAPS, NO_SWAPS)))


def walk_on(first_seed: int, operations: int, costs: PreemptionCosts, steps: int) -> Counter[str]:
    """Walk after walk until that many steps were executed."""
    seen: Counter[str] = Counter()
    seeds = itertools.count(first_seed)
    while seen["steps"] < steps:
        seen += walk(random.Random(next(seeds)), operations, costs)
    return seen


@pytest.mark.parametrize(
    ("costs", "swaps"), [(CHEAP_SWAPS, True), (NO_SWAPS, False)], ids=["swap", "recompute"]
)
def test_long_walks_end_with_the_right_answers(costs: PreemptionCosts, swaps: bool) -> None:
    seen = walk_on(0, operations=100, costs=costs, steps=5_000)
    # A walk that never meets the corner proves nothing about it.
    assert seen["preemptions"] > 50
    assert min(seen["hits"], seen["late"], seen["too late"], seen["lost"]) > 50, seen
    assert min(seen["forked"], seen["copied"]) > 20, seen
    assert (seen["out"] > 20 and seen["back"] > 20) == swaps, seen


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("costs", [CHEAP_SWAPS, NO_SWAPS], ids=["swap", "recompute"])
def test_half_a_million_steps_end_with_the_right_answers(costs: PreemptionCosts) -> None:
    walk_on(1000, operations=500, costs=costs, steps=500_000)
