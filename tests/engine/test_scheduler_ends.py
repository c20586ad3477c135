"""Requests on hold, and how requests end: once, with everything given back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.engine.stepping import EOS, make_scheduler, planned, request, result_of, sizes, step

from headway.engine.errors import RequestError
from headway.engine.limits import StepLimits
from headway.engine.policy import Priority
from headway.engine.values import (
    Emission,
    FinishReason,
    RequestKey,
    StepPlan,
)

# -- Hold ------------------------------------------------------


def test_a_held_request_keeps_its_blocks_and_continues_where_it_was() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a"))
    step(scheduler)
    used = scheduler.load.kv_blocks_used
    scheduler.hold("a")
    assert scheduler.plan(0.0) is None
    assert (scheduler.load.held, scheduler.load.running, scheduler.load.kv_blocks_used) == (1, 0, used)
    assert (scheduler.has_work, scheduler.has_runnable) == (True, False)
    scheduler.unhold("a")
    assert (scheduler.has_work, scheduler.has_runnable) == (True, True)
    assert [emission.token_index for emission in step(scheduler)] == [1]


def test_a_held_waiting_request_keeps_its_place_in_the_line() -> None:
    scheduler = make_scheduler(limits=StepLimits(max_sequences=1))
    scheduler.add(request("a"))
    scheduler.add(request("b"))
    scheduler.hold("a")
    scheduler.check()
    scheduler.unhold("a")
    assert list(sizes(planned(scheduler))) == ["a"]


def test_a_held_request_takes_no_place_in_the_step_from_others() -> None:
    scheduler = make_scheduler(limits=StepLimits(max_sequences=1))
    scheduler.add(request("a"))
    step(scheduler)
    scheduler.hold("a")
    scheduler.add(request("b"))
    assert list(sizes(planned(scheduler))) == ["b"]


def test_more_active_requests_than_a_step_may_hold_take_turns() -> None:
    scheduler = make_scheduler(limits=StepLimits(max_sequences=1))
    for name in "abc":
        scheduler.add(request(name, max_tokens=20))
        step(scheduler)
        scheduler.hold(name)
    for name in "abc":
        scheduler.unhold(name)
    served = [emission.key.request_id for _ in range(6) for emission in step(scheduler)]
    assert served == ["a", "b", "c", "a", "b", "c"]


def test_calls_for_unknown_requests_leave_no_state() -> None:
    scheduler = make_scheduler()
    scheduler.cancel("ghost", FinishReason.CANCELLED)
    scheduler.hold("ghost")
    scheduler.unhold("ghost")
    scheduler.finish(RequestKey("ghost", 0))
    assert not scheduler.has_work
    assert scheduler.plan(0.0) is None
    scheduler.add(request("ghost"))
    assert scheduler.load.held == 0
    assert len(step(scheduler)) == 1


# -- Ends ------------------------------------------------------


def test_the_same_epoch_is_refused_until_the_last_output_was_taken() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a"))
    with pytest.raises(RequestError, match="epoch 0"):
        scheduler.add(request("a"))
    scheduler.cancel("a", FinishReason.CANCELLED)
    with pytest.raises(RequestError, match="last output"):
        scheduler.add(request("a"))
    step(scheduler)
    scheduler.add(request("a"))
    assert [emission.token_index for emission in step(scheduler)] == [0]


def test_an_older_epoch_is_refused() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", epoch=3))
    with pytest.raises(RequestError, match="epoch 3"):
        scheduler.add(request("a", epoch=2))


def test_a_newer_epoch_gives_back_the_blocks_of_the_older() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", prompt=16))
    step(scheduler)
    scheduler.add(request("a", prompt=1, max_tokens=1, epoch=1))
    scheduler.check()
    plan = planned(scheduler)
    assert plan.released == (RequestKey("a", 0),)
    assert scheduler.load.kv_blocks_used == 1


def test_eos_ends_a_request_with_its_own_token_as_the_last() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a"))
    step(scheduler)
    assert step(scheduler, token_id=EOS) == (
        Emission(RequestKey("a", 0), 1, EOS, finish_reason=FinishReason.STOP),
    )
    assert not scheduler.has_work
    assert scheduler.load.kv_blocks_used == 0


def test_a_deadline_ends_waiting_and_running_requests_once() -> None:
    scheduler = make_scheduler(limits=StepLimits(max_sequences=1))
    for name, deadline in (("running", 5.0), ("waiting", 4.0), ("patient", 100.0)):
        scheduler.add(replace(request(name, max_tokens=20), deadline_seconds=deadline))
    step(scheduler, now=1.0)
    assert scheduler.next_deadline == 4.0
    ends = [e for now in (4.0, 5.0, 6.0) for e in step(scheduler, now) if e.finish_reason is not None]
    assert [(e.key.request_id, e.token_index, e.finish_reason) for e in ends] == [
        ("waiting", 0, FinishReason.DEADLINE),
        ("running", 2, FinishReason.DEADLINE),
    ]
    assert scheduler.next_deadline == 100.0


def test_a_request_past_its_deadline_never_starts() -> None:
    scheduler = make_scheduler()
    scheduler.add(replace(request("a"), deadline_seconds=1.0))
    plan = planned(scheduler, now=1.0)
    assert plan.chunks == ()
    (end,) = scheduler.apply(plan, result_of(plan), 1.0)
    assert (end.token_id, end.finish_reason) == (None, FinishReason.DEADLINE)


def test_ending_a_held_waiting_request_takes_nobody_elses_place() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a"))
    scheduler.add(request("b"))
    scheduler.hold("a")
    scheduler.cancel("a", FinishReason.CANCELLED)
    scheduler.check()
    assert list(sizes(planned(scheduler))) == ["b"]


def test_finished_requests_leave_no_deadline_behind() -> None:
    scheduler = make_scheduler()
    scheduler.add(replace(request("a", max_tokens=1), deadline_seconds=1e9))
    step(scheduler)
    assert scheduler.next_deadline is None


def test_the_same_calls_give_the_same_plans() -> None:
    def trace() -> list[StepPlan]:
        scheduler = make_scheduler(
            blocks=12, policy=Priority(), limits=StepLimits(max_step_tokens=9, max_sequences=4)
        )
        plans: list[StepPlan] = []
        for place in range(20):
            scheduler.add(
                request(f"r{place}", prompt=1 + place % 7, max_tokens=1 + place % 5, priority=place % 3)
            )
            if place % 6 == 5:
                scheduler.cancel(f"r{place - 3}", FinishReason.CANCELLED)
            if place % 2 and (plan := scheduler.plan(float(place))) is not None:
                plans.append(plan)
                scheduler.apply(plan, result_of(plan), float(place))
        return plans

    assert trace() == trace()


@pytest.mark.parametrize("field", ["max_step_tokens", "max_sequences", "min_chunk_tokens", "max_waiting"])
def test_limits_of_zero_are_refused_by_name(field: str) -> None:
    zero: dict[str, Any] = {field: 0}
    with pytest.raises(ValueError, match=f"{field} is 0"):
        StepLimits(**zero)


def test_limits_that_could_starve_prefills_are_refused() -> None:
    with pytest.raises(ValueError, match=r"max_step_tokens \(3\) is below max_sequences \(4\)"):
        StepLimits(max_step_tokens=3, max_sequences=4)
