"""The prefill budget is used up, and no prompt can take the floor of another."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from headway.engine.shares import LONG_PART, floor_chunk, is_short, promise, share_budget

prompts = st.lists(st.integers(1, 1000), max_size=12)
budgets = st.integers(1, 600)


@given(prompts, budgets, st.integers(1, 64))
def test_the_whole_budget_is_used_and_never_more(pending: list[int], budget: int, min_chunk: int) -> None:
    grants = share_budget(pending, budget, floor_chunk(budget, min_chunk))
    assert sum(grants) == min(budget, sum(pending))
    assert all(0 <= grant <= wanted for grant, wanted in zip(grants, pending, strict=True))


@given(prompts, budgets, st.integers(1, 64))
def test_everyone_gets_the_floor_when_there_is_budget_for_all_floors(
    pending: list[int], budget: int, min_chunk: int
) -> None:
    floor = floor_chunk(budget, min_chunk)
    floors = [min(floor, wanted) for wanted in pending]
    if sum(floors) <= budget:
        grants = share_budget(pending, budget, floor)
        assert all(grant >= least for grant, least in zip(grants, floors, strict=True))


@given(prompts, budgets, st.integers(1, 64))
def test_a_short_prompt_gets_more_than_the_floor_only_when_the_short_ones_before_it_have_all(
    pending: list[int], budget: int, min_chunk: int
) -> None:
    floor = floor_chunk(budget, min_chunk)
    grants = share_budget(pending, budget, floor)
    short = [pair for pair in zip(grants, pending, strict=True) if is_short(pair[1], budget)]
    for place, (grant, wanted) in enumerate(short):
        if grant < wanted:
            assert all(later <= floor for later, _ in short[place + 1 :])


@given(prompts, budgets, st.integers(1, 64))
def test_long_prompts_get_their_part_however_many_short_ones_there_are(
    pending: list[int], budget: int, min_chunk: int
) -> None:
    floor = floor_chunk(budget, min_chunk)
    floors = sum(min(floor, wanted) for wanted in pending)
    grants = share_budget(pending, budget, floor)
    long = [pair for pair in zip(grants, pending, strict=True) if not is_short(pair[1], budget)]
    if floors + budget // LONG_PART <= budget:
        assert all(grant >= min(wanted, budget // LONG_PART // len(long)) for grant, wanted in long)


@given(prompts, budgets, st.integers(1, 64))
@example([1, 1], 1, 1)  # a budget of one token is nobody else's beside who has it
def test_who_starts_within_the_promises_leaves_everyone_the_floor(
    pending: list[int], budget: int, min_chunk: int
) -> None:
    floor = floor_chunk(budget, min_chunk)
    started: list[int] = []
    for wanted in pending:  # the rule of admission.py
        promised = sum(promise(other, budget, floor) for other in started)
        if promised and promised + min(floor, wanted) > budget:
            break
        started.append(wanted)
    grants = share_budget(started, budget, floor)
    assert all(grant >= min(floor, wanted) for grant, wanted in zip(grants, started, strict=True))


def test_equal_prompts_end_one_after_the_other() -> None:
    assert share_budget([180] * 2, 256, floor_chunk(256, 32)) == [180, 76]


def test_a_prompt_of_two_steps_leaves_room_for_one_more_to_start() -> None:
    assert promise(500, 256, 32) == 256 - 32


def test_a_long_prompt_shares_with_short_ones() -> None:
    assert share_budget([100_000, 40, 50], 512, floor_chunk(512, 32)) == [422, 40, 50]


def test_two_long_prompts_get_half_each() -> None:
    assert share_budget([100_000, 100_000], 512, floor_chunk(512, 32)) == [256, 256]


def test_a_second_prompt_always_has_room_beside_a_first() -> None:
    assert share_budget([1000, 1000], 10, floor_chunk(10, 64)) == [5, 5]
