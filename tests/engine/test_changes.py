"""What may change while requests run: a class with what it aims at, caps, weights, and when to step."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.engine.stepping import make_scheduler, request, step
from tests.engine.test_budget import make_scheduler as make_timed_scheduler
from tests.engine.test_budget import seconds_of, spec
from tests.engine.test_budget import step as timed_step
from tests.engine.test_deadlines import Clocked, due

from headway.engine.errors import DeadlineError
from headway.engine.limits import StepLimits
from headway.engine.policy import DynamicBatch, Fcfs
from headway.engine.values import Objective

LIMITS = StepLimits(
    max_step_tokens=1000, max_step_seconds=0.5, max_gap_seconds=0.5, objectives=(Objective(1.0, 0.1),)
)


def test_who_comes_into_a_class_is_served_by_its_objective_and_who_leaves_is_not() -> None:
    scheduler = make_timed_scheduler(LIMITS)
    scheduler.add(spec("chat"))
    _, now = timed_step(scheduler, 0.99)
    scheduler.add(spec("book", prompt=50_000, arrival=now))
    seconds: list[float] = []
    for priority in (1, 0, 2):
        scheduler.set_priority("chat", priority)
        _, now = timed_step(scheduler, now)
        plan, now = timed_step(scheduler, now)
        seconds.append(seconds_of(plan))
    assert seconds == pytest.approx([0.5, 0.1, 0.5], rel=0.2)


def test_who_is_demoted_at_its_deadline_is_not_served_by_its_old_class_objective() -> None:
    scheduler = make_timed_scheduler(LIMITS)
    scheduler.add(replace(spec("chat"), priority=0, deadline_seconds=1.2, is_demotable=True))
    _, now = timed_step(scheduler, 0.99)
    scheduler.add(spec("book", prompt=50_000, arrival=now))
    plan, _ = timed_step(scheduler, now)
    assert seconds_of(plan) <= 0.11
    plan, _ = timed_step(scheduler, 1.3)
    assert seconds_of(plan) == pytest.approx(0.5, rel=0.05)


def test_an_objective_of_its_own_stays_whatever_the_class() -> None:
    scheduler = make_timed_scheduler(LIMITS)
    scheduler.add(spec("chat", tpot=0.2))
    _, now = timed_step(scheduler, 0.99)
    scheduler.set_priority("chat", 0)
    _, now = timed_step(scheduler, now)
    scheduler.add(spec("book", prompt=50_000, arrival=now))
    plan, _ = timed_step(scheduler, now)
    assert seconds_of(plan) == pytest.approx(0.2, rel=0.1)


def test_a_deadline_is_judged_by_the_caps_of_now() -> None:
    clocked = Clocked(Fcfs())
    clocked.warm_up()
    # 2,000 tokens: 32 steps of 64 in 2.4 s, but 500 steps of 4 in 7 s.
    clocked.scheduler.add(due(clocked, "in time", 4.0, prompt=2000, max_tokens=1), now=clocked.now)
    clocked.run()
    clocked.scheduler.set_limits(StepLimits(max_step_tokens=4, max_sequences=4))
    with pytest.raises(DeadlineError):
        clocked.scheduler.add(due(clocked, "late", 4.0, prompt=2000, max_tokens=1), now=clocked.now)


@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf, math.nan])
def test_a_weight_that_is_no_share_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="'a'"):
        make_scheduler().set_weight("a", weight)


def test_a_batch_that_waited_enough_and_finds_no_room_is_no_reason_to_step_again_and_again() -> None:
    scheduler = make_scheduler(blocks=4, policy=DynamicBatch(batch_size=8, delay_seconds=0.5))
    scheduler.add(request("first", max_tokens=9))
    dues = [scheduler.next_deadline]
    step(scheduler, now=0.5)
    scheduler.hold("first")
    scheduler.add(request("second", max_tokens=9, arrival=1.0))
    for now in (1.0, 1.5):
        assert scheduler.plan(now) is None
        assert not scheduler.has_runnable
        dues.append(scheduler.next_deadline)
    assert dues == [0.5, 1.5, None]
    scheduler.unhold("first")
    for place in range(20):
        if scheduler.has_work:
            step(scheduler, now=2.0 + place)
    assert not scheduler.has_work
