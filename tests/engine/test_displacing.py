"""A better class takes the blocks of lower ones: only where that makes room, and also from who is on hold."""

from __future__ import annotations

import random

import pytest
from tests.engine.stepping import EOS, result_of, sizes, step

from headway.engine.blocks import BlockLedger
from headway.engine.limits import StepLimits
from headway.engine.policy import POLICIES
from headway.engine.prefix_cache import PrefixCache
from headway.engine.scheduler import Scheduler
from headway.engine.timeline import Happening
from headway.engine.values import FinishReason, RequestSpec, Sampling, StepPlan

INTERACTIVE, BATCH = 0, 2


def make_scheduler(blocks: int, policy: str = "fair", limits: StepLimits | None = None) -> Scheduler:
    """Blocks of one token, reserved in full."""
    ledger = BlockLedger(blocks, 1, PrefixCache(1))
    return Scheduler(ledger, limits or StepLimits(), POLICIES[policy](), frozenset({EOS}))


def request(
    name: str, prompt: tuple[int, ...], max_tokens: int, priority: int, fork_of: str | None = None
) -> RequestSpec:
    return RequestSpec(
        name, 0, prompt, Sampling(temperature=0), max_tokens, priority=priority, fork_of=fork_of
    )


def happened_in(scheduler: Scheduler, plan: StepPlan) -> list[tuple[Happening, int]]:
    return [(e.happening, e.priority) for e in scheduler.timeline.events if e.step == plan.step]


@pytest.mark.parametrize("policy", ["fair", "priority"])
def test_nobody_gives_way_by_letting_go_of_blocks_that_the_better_request_shares(policy: str) -> None:
    scheduler = make_scheduler(11, policy)
    scheduler.add(request("held", (9, 9, 9), 2, INTERACTIVE))
    step(scheduler)
    scheduler.hold("held")
    scheduler.add(request("lower", (1, 2, 3), 2, BATCH))
    step(scheduler)
    # It needs 5 blocks beside the 3 that it shares, and one is free: of the 5 that "lower" would bring, 3 are
    # those. So both would have stood still, one without room and the other without its blocks.
    scheduler.add(request("better", (1, 2, 3, 4, 5), 3, INTERACTIVE))
    plan = scheduler.plan(0.0)
    assert plan is not None
    assert sizes(plan) == {"lower": 1}
    assert scheduler.load.running == 1


@pytest.mark.parametrize("policy", ["fair", "priority"])
def test_who_is_on_hold_gives_its_blocks_to_a_better_class_and_goes_on_afterwards(policy: str) -> None:
    scheduler = make_scheduler(8, policy)
    scheduler.add(request("held", (9, 9, 9), 4, BATCH))
    step(scheduler)
    scheduler.hold("held")
    scheduler.add(request("equal", (1, 2), 2, BATCH))
    assert scheduler.plan(0.0) is None
    scheduler.add(request("better", (1, 2, 3), 2, INTERACTIVE))
    plan = scheduler.plan(0.0)
    assert plan is not None
    assert sizes(plan) == {"better": 3}
    scheduler.apply(plan, result_of(plan), 0.0)
    scheduler.check()
    scheduler.unhold("held")
    ends: dict[str, FinishReason | None] = {}
    while scheduler.has_work:
        ends |= {e.key.request_id: e.finish_reason for e in step(scheduler)}
    assert ends == dict.fromkeys(("held", "equal", "better"), FinishReason.LENGTH)


@pytest.mark.parametrize("seed", range(20))
def test_whoever_gives_way_makes_room_and_nothing_stands_still(seed: int) -> None:
    """Reserved in full only a better class makes others give way: then it starts in that very step."""
    rng = random.Random(seed)
    limits = StepLimits(max_step_tokens=rng.randint(4, 12), max_sequences=rng.randint(1, 4))
    scheduler = make_scheduler(rng.randint(8, 14), rng.choice(("fair", "priority")), limits)
    held: set[str] = set()
    for place in range(60):
        prompt = tuple(rng.choice(((1, 2, 3, 1, 2, 3), (1, 2, 4, 4), (2, 2, 2, 2, 2)))[: rng.randint(1, 6)])
        most, priority = 8 - len(prompt), rng.randint(0, 2)
        for name in (f"r{place}", f"r{place}b")[: 1 + (rng.random() < 0.3)]:
            scheduler.add(request(name, prompt, rng.randint(1, most), priority, fork_of=f"r{place}"))
        scheduler.set_priority(f"r{rng.randint(0, place)}", rng.randint(0, 2))
        for _ in range(rng.randint(0, 4)):
            plan = scheduler.plan(float(place))
            if plan is None:
                break
            scheduler.check()
            events = happened_in(scheduler, plan)
            victims = [priority for what, priority in events if what is Happening.RECOMPUTED]
            starts = [p for what, p in events if what in (Happening.STARTED, Happening.RESUMED)]
            assert not victims or (len(starts) == 1 and starts[0] < min(victims))
            scheduler.apply(plan, result_of(plan), float(place))
        if rng.random() < 0.3:
            name = f"r{rng.randint(0, place)}"
            scheduler.hold(name)
            held.add(name)
        while held and rng.random() < 0.5:
            scheduler.unhold(held.pop())
    for name in held:
        scheduler.unhold(name)
    for _ in range(2000):
        if not scheduler.has_work:
            return
        step(scheduler, 100.0)
    pytest.fail("some never end")
