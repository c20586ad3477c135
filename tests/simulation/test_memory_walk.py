"""The memory's invariants B1 to B13 hold on every path: hypothesis finds short ones, seeds long ones."""

from __future__ import annotations

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


def walk_seeds(seeds: range, operations: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        seen += walk(random.Random(seed), operations)
    return seen


def test_long_walks_keep_every_block_and_every_byte() -> None:
    seen = walk_seeds(range(50), 200)
    # A walk that never meets the corner proves nothing about it.
    for corner in ("hit", "fork", "copy", "swap out", "swap in", "survivor", "limbo", "swapping", "short"):
        assert seen[corner] > 20, f"{corner} happened {seen[corner]} times: {seen}"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_operations_keep_every_block_and_every_byte() -> None:
    walk_seeds(range(1000, 2000), 1000)
