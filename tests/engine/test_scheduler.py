"""Plans and their results: budgets, order, bounded skipping, and what happens to results that come late."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.engine.stepping import TOKEN, make_scheduler, planned, request, result_of, sizes, step

from headway.engine.errors import EngineFullError, InvariantError
from headway.engine.limits import StepLimits
from headway.engine.policy import Priority
from headway.engine.values import (
    Emission,
    FinishReason,
    RequestKey,
    StepResult,
)

# -- The one rule ------------------------------------------------------


def test_a_prompt_is_computed_in_chunks_and_only_the_last_one_samples() -> None:
    scheduler = make_scheduler(limits=StepLimits(max_step_tokens=4, max_sequences=4))
    scheduler.add(request("a", prompt=10, max_tokens=2))
    seen: list[tuple[int, int, bool]] = []
    while scheduler.has_work:
        plan = planned(scheduler)
        seen += [(chunk.start, len(chunk.token_ids), chunk.samples) for chunk in plan.chunks]
        scheduler.apply(plan, result_of(plan), 0.0)
    assert seen == [(0, 4, False), (4, 4, False), (8, 2, True), (10, 1, True)]


def test_decodes_come_first_and_prefill_chunks_fill_the_same_step() -> None:
    scheduler = make_scheduler(limits=StepLimits(max_step_tokens=8, max_sequences=4))
    scheduler.add(request("a"))
    step(scheduler)
    scheduler.add(request("b", prompt=20))
    assert sizes(planned(scheduler)) == {"a": 1, "b": 7}


def test_several_prompts_prefill_side_by_side() -> None:
    scheduler = make_scheduler(limits=StepLimits(max_step_tokens=16, max_sequences=8, min_chunk_tokens=4))
    scheduler.add(request("long", prompt=100))
    scheduler.add(request("short", prompt=3))
    scheduler.add(request("middle", prompt=30))
    assert sizes(planned(scheduler)) == {"long": 4, "short": 3, "middle": 9}


def test_a_start_never_takes_the_floor_chunk_of_a_started_prefill() -> None:
    scheduler = make_scheduler(limits=StepLimits(max_step_tokens=16, max_sequences=8, min_chunk_tokens=8))
    for name in "abc":
        scheduler.add(request(name, prompt=40))
    assert sizes(planned(scheduler)) == {"a": 8, "b": 8}
    assert scheduler.load.waiting == 1


def test_the_runner_hears_of_a_request_once_and_of_its_end_once() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", max_tokens=2))
    scheduler.add(request("b", max_tokens=4))
    admitted: list[str] = []
    released: list[str] = []
    while scheduler.has_work:
        plan = planned(scheduler)
        admitted += [entry.key.request_id for entry in plan.admitted]
        released += [key.request_id for key in plan.released]
        scheduler.apply(plan, result_of(plan), 0.0)
    assert (admitted, released) == (["a", "b"], ["a"])
    scheduler.add(request("c"))
    assert planned(scheduler).released == (RequestKey("b", 0),)


def test_an_end_told_without_a_step_still_reaches_the_runner_with_the_next_step() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a"))
    step(scheduler)
    scheduler.cancel("a", FinishReason.CANCELLED)
    told = planned(scheduler)
    assert (told.chunks, told.released) == ((), ())
    scheduler.apply(told, result_of(told), 0.0)
    scheduler.add(request("b"))
    assert planned(scheduler).released == (RequestKey("a", 0),)


def test_a_block_table_object_changes_only_when_it_grows() -> None:
    scheduler = make_scheduler(block_size=4)
    scheduler.add(request("a", prompt=4, max_tokens=6))
    tables = []
    for _ in range(6):
        plan = planned(scheduler)
        tables.append(plan.chunks[0].block_table)
        scheduler.apply(plan, result_of(plan), 0.0)
    assert [len(table) for table in tables] == [1, 2, 2, 2, 2, 3]
    assert tables[1] is tables[2] is tables[3] is tables[4]


# -- Results that come late ------------------------------------------------------


def test_a_plan_thrown_away_loses_nothing() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a"))
    dropped = planned(scheduler)
    again = planned(scheduler)
    assert replace(again, step=dropped.step) == dropped
    assert scheduler.apply(again, result_of(again), 0.0) == (Emission(RequestKey("a", 0), 0, TOKEN),)


def test_a_result_that_arrives_twice_counts_once() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a"))
    plan = planned(scheduler)
    assert len(scheduler.apply(plan, result_of(plan), 0.0)) == 1
    assert scheduler.apply(plan, result_of(plan), 0.0) == ()
    scheduler.check()


def test_a_result_of_another_step_counts_for_nothing() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a"))
    plan = planned(scheduler)
    assert scheduler.apply(plan, replace(result_of(plan), step=plan.step + 1), 0.0) == ()
    assert planned(scheduler).chunks == plan.chunks


def test_a_token_computed_while_the_cancel_came_is_dropped() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a"))
    plan = planned(scheduler)
    scheduler.cancel("a", FinishReason.CANCELLED)
    emissions = scheduler.apply(plan, result_of(plan), 0.0)
    assert emissions == (Emission(RequestKey("a", 0), 0, None, finish_reason=FinishReason.CANCELLED),)


def test_a_result_for_an_older_epoch_never_lands_on_the_newer_one() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a"))
    plan = planned(scheduler)
    scheduler.add(request("a", epoch=1))
    assert scheduler.apply(plan, result_of(plan), 0.0) == ()
    (emission,) = step(scheduler)
    assert emission.key == RequestKey("a", 1)
    assert emission.token_index == 0


def test_a_runner_that_skips_a_sample_is_a_broken_runner() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a"))
    plan = planned(scheduler)
    with pytest.raises(InvariantError, match="sampled no token"):
        scheduler.apply(plan, StepResult(plan.step, (), 0.0), 0.0)


# -- Who starts ------------------------------------------------------


def test_sequences_in_a_step_stay_within_the_limit() -> None:
    scheduler = make_scheduler(limits=StepLimits(max_sequences=3))
    for place in range(5):
        scheduler.add(request(f"r{place}"))
    assert list(sizes(planned(scheduler))) == ["r0", "r1", "r2"]


def test_fcfs_goes_by_acceptance_not_by_arrival_here() -> None:
    scheduler = make_scheduler(limits=StepLimits(max_sequences=1))
    scheduler.add(request("late", arrival=9.0, priority=0))
    scheduler.add(request("early", arrival=1.0, priority=2))
    assert list(sizes(planned(scheduler))) == ["early"]


def test_priority_serves_the_better_class_first_and_oldest_first_inside_it() -> None:
    scheduler = make_scheduler(limits=StepLimits(max_sequences=2), policy=Priority())
    scheduler.add(request("batch", priority=2, arrival=1.0))
    scheduler.add(request("young", priority=0, arrival=3.0))
    scheduler.add(request("old", priority=0, arrival=2.0))
    assert list(sizes(planned(scheduler))) == ["old", "young"]


def test_a_better_class_gets_the_larger_prefill_share() -> None:
    limits = StepLimits(max_step_tokens=17, max_sequences=8, min_chunk_tokens=4)
    scheduler = make_scheduler(limits=limits, policy=Priority())
    scheduler.add(request("batch", prompt=100, priority=2))
    step(scheduler)
    scheduler.add(request("interactive", prompt=30, priority=0))
    assert sizes(planned(scheduler)) == {"interactive": 13, "batch": 4}


def test_a_request_that_does_not_fit_lets_smaller_ones_pass() -> None:
    scheduler = make_scheduler(blocks=6, block_size=4)
    scheduler.add(request("running", prompt=4, max_tokens=12))
    step(scheduler)
    scheduler.add(request("large", prompt=12, max_tokens=8))
    scheduler.add(request("small", prompt=2, max_tokens=2))
    assert list(sizes(planned(scheduler))) == ["running", "small"]


def test_a_request_that_does_not_fit_is_passed_at_most_so_often() -> None:
    scheduler = make_scheduler(blocks=6, block_size=4, limits=StepLimits(max_passes=3))
    scheduler.add(request("running", prompt=4, max_tokens=16))
    step(scheduler)
    scheduler.add(request("large", prompt=12, max_tokens=8))
    started: list[str] = []
    for place in range(30):
        scheduler.add(request(f"small{place}", prompt=1, max_tokens=1))
        plan = planned(scheduler)
        started += [entry.key.request_id for entry in plan.admitted]
        scheduler.apply(plan, result_of(plan), 0.0)
        scheduler.check()
    assert started.index("large") == 3
    assert len(started) > 4


def test_a_barrier_does_not_idle_the_device_when_only_held_requests_have_the_blocks() -> None:
    scheduler = make_scheduler(blocks=6, block_size=4, limits=StepLimits(max_passes=1))
    scheduler.add(request("held", prompt=4, max_tokens=12))
    step(scheduler)
    scheduler.hold("held")
    scheduler.add(request("large", prompt=12, max_tokens=8))
    for place in range(5):
        scheduler.add(request(f"small{place}", prompt=1, max_tokens=1))
    finished = [emission.key.request_id for _ in range(5) for emission in step(scheduler)]
    assert finished == [f"small{place}" for place in range(5)]
    assert scheduler.plan(0.0) is None
    scheduler.unhold("held")
    while scheduler.has_work:
        finished += [e.key.request_id for e in step(scheduler) if e.finish_reason is not None]
    assert finished[-2:] == ["held", "large"]


def test_too_many_waiting_requests_are_refused_without_harm() -> None:
    scheduler = make_scheduler(limits=StepLimits(max_waiting=2))
    scheduler.add(request("a"))
    scheduler.add(request("b"))
    with pytest.raises(EngineFullError, match="2 requests wait"):
        scheduler.add(request("c"))
    scheduler.check()
    assert {emission.key.request_id for emission in step(scheduler)} == {"a", "b"}
