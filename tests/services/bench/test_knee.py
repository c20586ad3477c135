"""The search ends, and ends close to the knee, wherever that is."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headway.services.bench.knee import CLOSE_ENOUGH, Knee, find_knee, knee_of, next_rate


@given(st.floats(0.01, 500.0), st.floats(0.05, 50.0))
def test_the_search_finds_a_knee_wherever_it_is_within_a_few_points(knee: float, first: float) -> None:
    tried: dict[float, float | None] = {}
    rate: float | None = first
    while rate is not None:
        tried[rate] = 1.0 if rate <= knee else 0.2
        assert len(tried) <= 40
        rate = next_rate(find_knee(tried, 0.9), first)
    found = find_knee(tried, 0.9)
    assert found.served is not None
    assert found.failed is not None
    assert found.served <= knee < found.failed
    # Rates are rounded to three digits, which may end the search a little early.
    assert found.failed / found.served <= CLOSE_ENOUGH * 1.02


def test_a_lucky_rate_above_one_that_failed_is_no_knee() -> None:
    assert find_knee({1.0: 1.0, 2.0: 0.5, 4.0: 0.95}, 0.9) == Knee(1.0, 2.0, 0.9)


def point(rate: float, attainment: float, *complaints: str) -> dict[str, Any]:
    return {"rate": rate, "attainment": attainment, "client": {"complaints": list(complaints)}}


def test_a_point_whose_client_was_the_bottleneck_is_no_part_of_the_knee() -> None:
    late = point(2.0, 0.1, "requests were sent late")
    assert knee_of([point(1.0, 1.0), late, point(4.0, 0.95), point(8.0, 0.5)], 0.9) == Knee(4.0, 8.0, 0.9)
    assert knee_of([point(1.0, 1.0), point(8.0, 1.0, "late")], 0.9) == Knee(1.0, None, 0.9)
    assert knee_of([late], 0.9) is None


def test_a_rate_at_which_nothing_came_back_is_not_served() -> None:
    assert find_knee({1.0: 0.99, 2.0: None}, 0.9) == Knee(1.0, 2.0, 0.9)


def test_rates_that_were_all_served_leave_the_knee_open() -> None:
    assert find_knee({1.0: 1.0, 2.0: 0.9}, 0.9) == Knee(2.0, None, 0.9)
