"""One step ahead under memory pressure, with late results, late swaps and lost devices: the same promises.

[S1-S5, S13, S15, O1-O3, B1-B3, B9, B12] Field cases 11, 13 and 24 at random.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.ahead_world import AheadWorld
from tests.simulation.preemption_world import CHEAP_SWAPS, DEAR_WAYS, NO_SWAPS

from headway.engine.preemption import PreemptionCosts


def walk(rng: random.Random, operations: int, costs: PreemptionCosts) -> Counter[str]:
    world = AheadWorld(rng, costs=costs)
    for _ in range(operations):
        world.act()
    world.finish()
    return world.seen


def walk_on(first_seed: int, operations: int, costs: PreemptionCosts, steps: int) -> Counter[str]:
    """Walk after walk until that many steps were executed."""
    seen: Counter[str] = Counter()
    seeds = itertools.count(first_seed)
    while seen["steps"] < steps:
        seen += walk(random.Random(next(seeds)), operations, costs)
    return seen


@given(rng=st.randoms(use_true_random=False), operations=st.integers(1, 120))
@settings(max_examples=60, deadline=None)
def test_any_short_walk_ends_with_the_right_answers(rng: random.Random, operations: int) -> None:
    walk(rng, operations, rng.choice((CHEAP_SWAPS, NO_SWAPS, DEAR_WAYS)))


@pytest.mark.parametrize(
    ("costs", "swaps"), [(CHEAP_SWAPS, True), (NO_SWAPS, False)], ids=["swap", "recompute"]
)
def test_long_walks_end_with_the_right_answers(costs: PreemptionCosts, swaps: bool) -> None:
    seen = walk_on(0, operations=200, costs=costs, steps=5_000)
    # A walk that never meets the corner proves nothing about it.
    for corner in ("preemptions", "in vain", "drained", "failed", "lost"):
        assert seen[corner] > 50, f"{corner}: {seen}"
    assert seen["ahead"] > seen["steps"] / 4
    assert min(seen["forked"], seen["copied"]) > 20, seen
    assert (seen["out"] > 20 and seen["back"] > 20) == swaps, seen


def test_who_waits_for_the_ends_of_others_is_not_waiting_for_those_who_wait_as_well() -> None:
    """Found by the grid of ways to give way: where all lack a block, nobody's end comes by itself."""
    assert walk_on(0, operations=500, costs=DEAR_WAYS, steps=10_000)["deferred"] > 30


def test_a_fork_of_who_just_came_back_from_the_host_waits_for_its_blocks_also_after_a_failed_step() -> None:
    """Found by the half million: the failed step had called the swap complete while it was under way."""
    walk(random.Random(4435), 500, CHEAP_SWAPS)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("costs", [CHEAP_SWAPS, NO_SWAPS, DEAR_WAYS], ids=["swap", "recompute", "dear"])
def test_half_a_million_steps_end_with_the_right_answers(costs: PreemptionCosts) -> None:
    walk_on(1000, operations=500, costs=costs, steps=500_000)
