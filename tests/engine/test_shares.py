"""The prefill budget is used up, and no prompt can take the floor of another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.engine.shares import floor_chunk, share_budget

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
def test_a_chunk_above_the_cap_takes_nothing_that_another_could_use(
    pending: list[int], budget: int, min_chunk: int
) -> None:
    floor = floor_chunk(budget, min_chunk)
    grants = share_budget(pending, budget, floor)
    cap = max(floor, budget // max(1, len(pending)))
    if any(grant > cap for grant in grants):
        assert all(grant >= min(cap, wanted) for grant, wanted in zip(grants, pending, strict=True))


def test_a_long_prompt_shares_with_short_ones() -> None:
    assert share_budget([100_000, 40, 50], 512, floor_chunk(512, 32)) == [422, 40, 50]


def test_two_long_prompts_get_half_each() -> None:
    assert share_budget([100_000, 100_000], 512, floor_chunk(512, 32)) == [256, 256]


def test_a_second_prompt_always_has_room_beside_a_first() -> None:
    assert share_budget([1000, 1000], 10, floor_chunk(10, 64)) == [5, 5]
