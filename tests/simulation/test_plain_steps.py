"""Steps of decodes alone are planned without the questions that decide nothing there: to the same plans.

The same life is lived twice, once with every step planned the long way, with preemptions, swaps, forks, ends,
cancels, holds, changed deadlines and classes, failed and lost steps and plans ahead in between.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.ahead_world import AheadWorld
from tests.simulation.guessing_world import GuessingWorld
from tests.simulation.preemption_world import CHEAP_SWAPS, DEAR_WAYS, NO_SWAPS, PreemptionWorld

from headway.engine import plain_step, planner
from headway.engine.blocks import BlockLedger
from headway.engine.cost_model import CostModel
from headway.engine.limits import StepLimits
from headway.engine.memory import Memory
from headway.engine.planner import Planner
from headway.engine.policy import POLICIES
from headway.engine.request import Request
from headway.engine.values import RequestSpec, Sampling

FILL = Planner.fill


class Life:
    """One life of a world: what each step was filled with and what it left, and what happened."""

    def __init__(self, world: PreemptionWorld, operations: int, *, has_short_way: bool) -> None:
        self.steps: list[Any] = []
        self.plain = 0

        def is_plain(*given: Any) -> bool:
            found = has_short_way and plain_step.is_plain(*given)
            self.plain += found
            return found

        def fill(filler: Planner, *given: Any, **named: Any) -> list[tuple[Request, int]]:
            filled = FILL(filler, *given, **named)
            who, left = [(request.key, tokens) for request, tokens in filled], filler.budget
            self.steps.append((given, who, filler.has_moved, left.tokens, left.seconds))
            return filled

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planner, "is_plain", is_plain)
            patch.setattr(Planner, "fill", fill)
            for _ in range(operations):
                world.act()
            world.finish()
        timeline = world.scheduler.timeline
        self.happened = [*timeline.steps], [*timeline.events]
        self.answers = {name: (told.tokens, told.end) for name, told in world.told.items()}


def make_world(seed: int) -> PreemptionWorld:
    rng = random.Random(seed)
    costs = rng.choice((CHEAP_SWAPS, NO_SWAPS, DEAR_WAYS))
    if rng.random() < 0.7:
        return AheadWorld(rng, costs=costs)
    return GuessingWorld(
        rng, block_count=12, block_size=2, slots=4, copy_delay=1, policy=rng.choice(("fair", "fcfs"))
    )


def live_twice(seed: int, operations: int) -> int:
    """How many steps went the short way."""
    short = Life(make_world(seed), operations, has_short_way=True)
    long = Life(make_world(seed), operations, has_short_way=False)
    assert short.steps == long.steps
    assert short.happened == long.happened
    assert short.answers == long.answers
    assert long.plain == 0
    return short.plain


@given(seed=st.integers(0, 2**32), operations=st.integers(1, 120))
@settings(max_examples=60, deadline=None)
def test_any_life_is_planned_alike_the_short_way(seed: int, operations: int) -> None:
    live_twice(seed, operations)


def test_long_lives_are_planned_alike_and_go_the_short_way_often() -> None:
    assert sum(live_twice(seed, 200) for seed in range(60)) > 1_000


def test_a_claim_whose_owner_does_not_wait_any_more_is_left_to_the_long_way_which_ends_it() -> None:
    memory = Memory(BlockLedger(8, 4), CostModel(), is_overcommitted=True)
    policy, limits = POLICIES["fcfs"](), StepLimits()
    assert plain_step.is_plain({}, policy, memory, limits)
    memory.claim(Request(RequestSpec("held", 0, (1,), Sampling(), 4), 1))
    assert not plain_step.is_plain({}, policy, memory, limits)
