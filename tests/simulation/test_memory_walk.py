"""The memory's invariants B1 to B13 hold on every path: hypothesis finds short ones, seeds long ones."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.memory_world import MemoryWorld


def make_world(rng: random.Random) -> MemoryWorld:
    return MemoryWorld(
        rng,
        block_count=rng.randint(3, 12),
        block_size=rng.randint(1, 4),
        slots=rng.choice((0, 3, 8)),
        delay=rng.randint(0, 2),
        copy_delay=rng.randint(0, 2),
    )


def walk(rng: random.Random, operations: int) -> Counter[str]:
    world = make_world(rng)
    for _ in range(operations):
        world.act()
    world.finish()
    return world.seen


@given(rng=st.randoms(use_true_random=False), operations=st.integers(1, 60))
@settings(max_examples=100, deadline=None)
def test_any_short_walk_keeps_every_block_and_every_byte(rng: random.Random, operations: int) -> None:
    walk(rng, operations)


def walk_on(first_seed: int, operations: int, steps: int) -> Counter[str]:
    """Walk after walk until that many steps were executed."""
    seen: Counter[str] = Counter()
    seeds = itertools.count(first_seed)
    while seen["steps"] < steps:
        seen += walk(random.Random(next(seeds)), operations)
    return seen


def test_long_walks_keep_every_block_and_every_byte() -> None:
    seen = walk_on(0, operations=200, steps=10_000)
    # A walk that never meets the corner proves nothing about it.
    corners = ("hit", "expected", "fork", "copy", "swap out", "swap in", "survivor", "limbo", "swapping")
    for corner in (*corners, "short"):
        assert seen[corner] > 20, f"{corner} happened {seen[corner]} times: {seen}"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_steps_keep_every_block_and_every_byte() -> None:
    walk_on(1000, operations=1000, steps=1_000_000)
