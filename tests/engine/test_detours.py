"""Every preemption is followed to its end: what it was to cost, and what it came to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.engine.rig import Rig

from headway.engine.detours import Comeback, Departure, Detours
from headway.engine.preemption import Mode, Preemption
from headway.engine.request import Request
from headway.engine.values import CopyTime, FinishReason, RequestSpec, Sampling


def request(computed: int = 10) -> Request:
    spec = RequestSpec("r", 1, tuple(range(20)), Sampling(), 5, tenant="a", priority=2)
    return Request(spec, 1, computed_tokens=computed)


def leave(detours: Detours, gone: Request, mode: Mode, step: int = 3, blocks: int = 5) -> None:
    preemption = Preemption(gone, mode, 0.5, 5, swap_seconds=0.25, recompute_seconds=0.75)
    copied = blocks if mode is Mode.SWAP else 0
    detours.leave(preemption, step, copied_blocks=copied, block_bytes=100.0, kv_blocks=(40, 30, 25))
    if not copied:
        gone.computed_tokens = 0


def comeback(detours: Detours) -> Comeback:
    last = detours.happened[-1]
    assert isinstance(last, Comeback)
    return last


def test_case_40_a_departure_says_who_went_how_and_what_both_ways_would_cost() -> None:
    detours = Detours()
    leave(detours, request(), Mode.SWAP)
    leave(detours, request(), Mode.RECOMPUTE)
    swapped, lost = detours.happened
    assert isinstance(swapped, Departure)
    assert isinstance(lost, Departure)
    assert (swapped.tenant, swapped.priority, swapped.step, swapped.mode) == ("a", 2, 3, Mode.SWAP)
    assert (swapped.lost_tokens, swapped.moved_bytes) == (0, 500)
    assert (lost.lost_tokens, lost.moved_bytes) == (10, 0)
    assert (swapped.swap_seconds, swapped.recompute_seconds) == (0.25, 0.75)
    assert (swapped.kv_blocks_total, swapped.kv_blocks_before, swapped.kv_blocks_after) == (40, 30, 25)


def test_a_swap_costs_its_part_of_the_copies_both_ways() -> None:
    detours, gone = Detours(), request()
    leave(detours, gone, Mode.SWAP)
    detours.land(3, 2, ())
    detours.land(4, 4, (CopyTime(3, True, 20, 0.4),))
    assert gone in detours, "it is in host memory"
    detours.turn_back(gone, 9, 5)
    detours.land(9, 9, (CopyTime(9, True, 5, 7.0), CopyTime(9, False, 10, 0.1)))
    assert gone not in detours
    assert comeback(detours).predicted_seconds == 0.25
    assert comeback(detours).real_seconds == pytest.approx(0.4 * 5 / 20 + 0.1 * 5 / 10)


def test_a_recompute_costs_its_part_of_the_steps_until_it_is_where_it_was() -> None:
    detours, gone = Detours(), request()
    leave(detours, gone, Mode.RECOMPUTE)
    detours.turn_back(gone, 5, 0)
    gone.computed_tokens = 2  # of it were still cached
    detours.compute(gone, 2, 6, 0.4)
    gone.computed_tokens = 6
    detours.land(6, 6, ())
    detours.compute(gone, 6, 14, 0.8)
    gone.computed_tokens = 14
    detours.land(7, 7, ())
    assert comeback(detours).mode is Mode.RECOMPUTE
    assert comeback(detours).real_seconds == pytest.approx(0.4 + 0.8 * 4 / 8), "what is beyond is new"
    spent = detours.spent[Mode.RECOMPUTE]
    assert spent.predicted_seconds == 0.75
    assert spent.real_seconds == pytest.approx(0.8)


def test_copies_that_nobody_times_cost_nothing_but_end_all_the_same() -> None:
    detours, gone = Detours(), request()
    leave(detours, gone, Mode.SWAP)
    detours.turn_back(gone, 5, 5)
    detours.land(5, 4, ())
    assert gone in detours
    detours.land(6, 5, ())
    assert comeback(detours).real_seconds == 0.0


def test_who_ends_on_the_way_never_comes_back_and_leaves_nothing() -> None:
    detours, gone = Detours(), request()
    leave(detours, gone, Mode.SWAP)
    detours.forget(gone)
    detours.land(9, 9, (CopyTime(3, True, 5, 1.0),))
    assert len(detours) == 0
    assert len(detours.happened) == 1


@pytest.mark.parametrize("slots", [0, 64])
def test_the_scheduler_follows_all_its_preemptions(slots: int) -> None:
    rig = Rig(blocks=8, slots=slots)
    for name in "abcd":
        rig.add(name, first=ord(name))
    rig.run()
    happened = list(rig.memory.giving_way.detours.happened)
    left = [event for event in happened if isinstance(event, Departure)]
    back = [event for event in happened if isinstance(event, Comeback)]
    assert len(left) == rig.preemptions > 0
    assert {event.mode for event in left} == {Mode.SWAP if slots else Mode.RECOMPUTE}
    assert all(math.isinf(event.swap_seconds) for event in left) == (not slots)
    assert all(event.kv_blocks_after < event.kv_blocks_before <= event.kv_blocks_total for event in left)
    assert sorted(event.key.request_id for event in left) == sorted(event.key.request_id for event in back)
    if not slots:
        assert all(event.real_seconds > 0.0 for event in back)
    extra = rig.scheduler.load.extra
    assert extra["recompute_real_seconds"] == pytest.approx(
        sum(event.real_seconds for event in back if event.mode is Mode.RECOMPUTE)
    )
    assert len(rig.memory.giving_way.detours) == 0


def test_a_cancel_in_host_memory_leaves_nothing_behind() -> None:
    rig = Rig(blocks=8, slots=64)
    specs = [rig.add(name, first=ord(name)) for name in "abcd"]
    while not rig.preemptions:
        rig.step()
    for spec in specs:
        rig.scheduler.cancel(spec.request_id, FinishReason.CANCELLED)
    assert len(rig.memory.giving_way.detours) == 0
    rig.run()


def test_copies_in_the_way_of_a_step_teach_nothing_about_computing() -> None:
    rig = Rig()
    rig.add("a", prompt=4, max_tokens=8)
    plan = rig.plan()
    assert plan is not None
    result = rig.runner.execute(plan)
    times = (CopyTime(plan.step, True, 3, 5.0), CopyTime(plan.step, False, 1, 9.0, is_beside=True))
    slow = replace(result, elapsed_seconds=result.elapsed_seconds + 5.0, copy_times=times)
    rig.hear_all(plan, slow)
    before = rig.scheduler.timeline.steps[-1].real_seconds
    assert before == pytest.approx(result.elapsed_seconds + 5.0)
    a, b, c, q = rig.cost.mixed.coefficients
    assert a + 4 * b + 4 * c + 8 * q == pytest.approx(result.elapsed_seconds, rel=0.2)


def test_the_scheduler_learns_from_every_copy_that_its_runner_times() -> None:
    rig = Rig(blocks=8, slots=64)
    for name in "abcd":
        rig.add(name, first=ord(name))
    while not rig.preemptions:
        plan = rig.plan()
        assert plan is not None
        result = rig.runner.execute(plan)
        times = (CopyTime(plan.step, True, len(plan.swaps_out), 1e-3),) if plan.swaps_out else ()
        rig.hear_all(plan, replace(result, copy_times=times))
    before = Rig(slots=1).memory.giving_way.costs.now.swap_seconds(4)
    assert rig.memory.giving_way.costs.now.swap_seconds(4) > before
