"""What users of other engines ran into with memory, as tests of the whole scheduler.

The numbers are those of ``field_cases.md``, where every case has its line. The random walks of
``tests/simulation`` meet all of them again.
"""

from __future__ import annotations

import pytest
from tests.engine.rig import Rig

from headway.engine.checks import check_request
from headway.engine.errors import ContextLengthError
from headway.engine.preemption import Mode
from headway.engine.values import FinishReason, RequestSpec, Sampling


@pytest.mark.parametrize("slots", [0, 8], ids=["recompute", "swap"])
@pytest.mark.parametrize("copy_delay", [0, 2])
def test_case_22_an_answer_that_gave_way_is_extended_never_rewritten(slots: int, copy_delay: int) -> None:
    rig = Rig(slots=slots, copy_delay=copy_delay)
    specs = [rig.add(f"r{index}", first=10 * index) for index in range(4)]
    rig.run()
    assert rig.memory.preemptions[Mode.SWAP if slots else Mode.RECOMPUTE] > 0
    assert all(rig.is_right(spec) for spec in specs)
    assert all(ends == [FinishReason.LENGTH] for ends in rig.ends.values())
    assert rig.ledger.used_blocks == 0


def test_cases_16_and_17_a_request_as_large_as_the_pool_runs_and_one_larger_is_refused() -> None:
    rig = Rig(blocks=4)
    for prompt, max_tokens, fits in ((4, 3, True), (4, 4, True), (4, 5, False), (8, 1, False)):
        spec = RequestSpec("x", 1, tuple(range(prompt)), Sampling(temperature=0.0), max_tokens)
        if fits:
            check_request(spec, rig.runner)
            told = rig.add(f"{prompt}+{max_tokens}", prompt, max_tokens)
            rig.run()
            assert rig.is_right(told)
        else:
            with pytest.raises(ContextLengthError):
                check_request(spec, rig.runner)
    after = rig.add("after", 2, 3)
    rig.run()
    assert rig.is_right(after), "a refusal leaves the engine alive"


@pytest.mark.parametrize("slots", [0, 8], ids=["recompute", "swap"])
def test_cases_15_and_23_requests_that_cannot_all_grow_still_all_end(slots: int) -> None:
    rig = Rig(blocks=6, slots=slots, max_preemptions=1)
    specs = [rig.add(f"r{index}", 2, 10, first=10 * index) for index in range(6)]
    rig.run()
    assert all(rig.is_right(spec) for spec in specs)


@pytest.mark.parametrize("slots", [0, 8], ids=["recompute", "swap"])
def test_case_3_preemptions_of_one_request_are_bounded(slots: int) -> None:
    rig = Rig(slots=slots, max_preemptions=2)
    for index in range(8):
        rig.add(f"r{index}", first=10 * index)
    rig.run()
    assert 0 < rig.preemptions <= 2 * 8


@pytest.mark.parametrize("slots", [0, 8], ids=["recompute", "swap"])
@pytest.mark.parametrize("steps", range(10))
@pytest.mark.parametrize("planned", [False, True], ids=["between steps", "while a step runs"])
def test_case_18_a_cancel_in_any_phase_releases_once(slots: int, steps: int, planned: bool) -> None:
    rig = Rig(slots=slots, copy_delay=1)
    specs = [rig.add(f"r{index}", first=10 * index) for index in range(4)]
    for _ in range(steps):
        rig.step()
    plan = rig.plan() if planned else None
    for spec in specs[1:3]:
        rig.scheduler.cancel(spec.request_id, FinishReason.CANCELLED)
        rig.scheduler.cancel(spec.request_id, FinishReason.CANCELLED)
        rig.scheduler.check()
    if plan is not None:
        rig.apply(plan)
    rig.run()
    assert rig.is_right(specs[0])
    assert all(len(ends) == 1 for ends in rig.ends.values())
    rig.step()
    assert (rig.ledger.used_blocks, rig.ledger.limbo_blocks, rig.ledger.swapping_blocks) == (0, 0, 0)
    assert rig.memory.host.free_slots == slots


@pytest.mark.parametrize("slots", [0, 8], ids=["recompute", "swap"])
def test_case_20_who_ends_while_somebody_needs_its_room_ends_once(slots: int) -> None:
    preemptions = [rig_with_a_late_result(slots, late_step).preemptions for late_step in range(2, 14)]
    assert max(preemptions) > 0
    assert min(preemptions) == 0, "once the victim of all other runs had just ended"


def rig_with_a_late_result(slots: int, late_step: int) -> Rig:
    """While the result of one step is still on its way the next one is planned, and looks for a victim."""
    rig = Rig(slots=slots)
    specs = [rig.add(f"r{length}", 4, length, first=10 * length) for length in (3, 5, 7, 8)]
    for step in range(60):
        plan = rig.plan()
        if plan is not None and plan.needs_runner and step == late_step:
            result = rig.runner.execute(plan)
            rig.plan()
            rig.hear_all(plan, result)
        elif plan is not None:
            rig.apply(plan)
    assert all(rig.is_right(spec) for spec in specs)
    assert list(rig.ends.values()) == [[FinishReason.LENGTH]] * 4
    assert (rig.ledger.used_blocks, rig.memory.host.free_slots) == (0, slots)
    return rig


@pytest.mark.parametrize("slots", [0, 16], ids=["recompute", "swap"])
def test_case_11_an_id_that_is_cancelled_and_comes_again_gets_only_its_own_tokens(slots: int) -> None:
    rig = Rig(slots=slots, copy_delay=1)
    rig.add("again", first=50)
    rig.add("other", first=20)
    for _ in range(4):
        rig.step()
    plan = rig.plan()
    assert plan is not None
    rig.scheduler.cancel("again", FinishReason.CANCELLED)
    anew = rig.add("again", first=70, epoch=2)
    rig.apply(plan)
    rig.run()
    assert rig.is_right(anew)


def test_case_36_what_is_recomputed_after_a_preemption_is_no_cache_hit() -> None:
    rig = Rig()
    for index in range(4):
        rig.add(f"r{index}", first=10 * index)
    rig.run()
    load = rig.scheduler.load.extra
    assert rig.preemptions > 0
    assert load["preemption_lost_tokens"] > 0
    assert (load["prefix_hit_tokens"], load["prefix_lookup_tokens"]) == (0, 16)
    again = rig.add("again", first=30)
    rig.run()
    assert rig.is_right(again)
    load = rig.scheduler.load.extra
    assert load["prefix_hit_tokens"] <= load["prefix_lookup_tokens"] == 20


def test_case_1_a_better_class_takes_the_last_place_of_a_lower_one_but_equals_never_do() -> None:
    rig = Rig(sequences=1, blocks=16, policy="priority")
    low = rig.add("low", priority=2)
    rig.step()
    equal = rig.add("equal", priority=2, first=30)
    rig.step()
    assert rig.preemptions == 0
    high = rig.add("high", priority=0, first=60)
    rig.step()
    rig.step()
    assert rig.preemptions == 1
    assert len(rig.tokens["high"]) > 0
    rig.run()
    assert all(rig.is_right(spec) for spec in (low, equal, high))


def test_case_32_a_storm_of_cancels_leaves_a_healthy_engine() -> None:
    rig = Rig(slots=8, copy_delay=2)
    for wave in range(10):
        for index in range(6):
            rig.add(f"w{wave}-{index}", first=10 * index)
        rig.step()
        rig.step()
        for index in range(6):
            rig.scheduler.cancel(f"w{wave}-{index}", FinishReason.CANCELLED)
        rig.scheduler.check()
    rig.run()
    normal = rig.add("normal")
    rig.run()
    assert rig.is_right(normal)
    assert rig.memory.host.free_slots == 8


@pytest.mark.parametrize("fate", ["unexecuted", "lost"])
@pytest.mark.parametrize("copy_delay", [0, 1, 2])
def test_a_swap_whose_plan_is_dropped_is_done_once_more_and_waited_for(fate: str, copy_delay: int) -> None:
    rig = Rig(slots=8, copy_delay=copy_delay)
    specs = [rig.add(f"r{index}", first=10 * index) for index in range(4)]
    dropped = 0
    for _ in range(300):
        plan = rig.plan()
        if plan is not None and plan.has_copies and dropped < 20:
            dropped += 1
            if fate == "lost":
                rig.runner.execute(plan)
            plan = rig.plan()
        if plan is not None:
            rig.apply(plan)
        if not rig.scheduler.has_work:
            break
    assert dropped > 2
    assert all(rig.is_right(spec) for spec in specs)


def test_what_recomputing_costs_is_not_taken_for_nothing_before_it_is_known() -> None:
    rig = Rig(slots=8)
    for index in range(4):
        rig.add(f"r{index}", first=10 * index)
    rig.run()
    assert rig.memory.preemptions[Mode.SWAP] > 0
    assert rig.memory.preemptions[Mode.RECOMPUTE] == 0
