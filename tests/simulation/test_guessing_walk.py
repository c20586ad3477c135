"""Whatever is guessed, and whatever of it is wrong: every answer is the one without guesses.

The toy model hashes the history out of the KV blocks: a token whose KV a wrong guess left behind would change
all that follow.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.guessing_world import GuessingWorld
from tests.simulation.preemption_world import CHEAP_SWAPS, NO_SWAPS

POLICIES = ("fair", "fcfs", "priority")


def walk(rng: random.Random, operations: int) -> Counter[str]:
    world = GuessingWorld(
        rng,
        block_count=rng.randint(3, 12),
        block_size=rng.randint(1, 4),
        slots=rng.choice((0, 4, 12)),
        copy_delay=rng.randint(0, 2),
        policy=rng.choice(POLICIES),
        costs=rng.choice((CHEAP_SWAPS, NO_SWAPS)),
        max_preemptions=rng.randint(0, 3),
    )
    for _ in range(operations):
        world.act()
    world.finish()
    return world.seen


@given(rng=st.randoms(use_true_random=False), operations=st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_any_short_walk_with_guesses_ends_with_the_right_answers(rng: random.Random, operations: int) -> None:
    walk(rng, operations)


def test_long_walks_with_guesses_end_with_the_right_answers() -> None:
    seen: Counter[str] = Counter()
    for seed in itertools.count():
        seen += walk(random.Random(seed), 100)
        if seen["steps"] > 5_000:
            break
    # A walk that never meets the corner proves nothing about it.
    assert seen["right"] > 500
    assert seen["guessed"] - seen["right"] > 500
    assert seen["preemptions"] > 50
    assert seen["forked"] > 50
    assert seen["hits"] > 50
    assert min(seen[fate] for fate in ("late", "too late", "lost", "overtaken", "cancelled")) > 10
