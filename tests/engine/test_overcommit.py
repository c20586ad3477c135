"""The peak estimate is exact for known lengths, and lengths are learned per tenant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.engine.overcommit import OutputQuantiles, PeakEstimate

REQUESTS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=8)


def simulated_peak(requests: list[tuple[int, int]]) -> int:
    """Grow everybody by one per step, let go who is done, and look."""
    live = list(requests)
    peak = sum(current for current, _ in live)
    while live:
        live = [(current + 1, left - 1) for current, left in live if left > 0]
        peak = max(peak, sum(current for current, _ in live))
    return peak


@given(REQUESTS)
def test_the_peak_is_what_a_run_with_these_lengths_needs(requests: list[tuple[int, int]]) -> None:
    assert PeakEstimate(requests).peak == simulated_peak(requests)


@given(REQUESTS, st.integers(0, 20), st.integers(0, 20))
def test_one_more_is_reckoned_without_adding_it(
    requests: list[tuple[int, int]], current: int, remaining: int
) -> None:
    estimate = PeakEstimate(requests)
    expected = PeakEstimate([*requests, (current, remaining)]).peak
    assert estimate.with_one_more(current, remaining) == expected
    assert estimate.peak == PeakEstimate(requests).peak
    estimate.add(current, remaining)
    assert (estimate.peak, len(estimate)) == (expected, len(requests) + 1)


def test_a_tenant_without_a_history_gets_its_longest_answer() -> None:
    lengths = OutputQuantiles(min_samples=3)
    lengths.observe("a", 10)
    lengths.observe("a", 10)
    assert lengths.remaining_tokens("a", 0, 500) == 500
    lengths.observe("a", 10)
    assert lengths.remaining_tokens("a", 0, 500) == 10
    assert lengths.remaining_tokens("b", 0, 500) == 500


def test_an_answer_that_outlives_most_is_expected_to_be_one_of_the_long_ones() -> None:
    lengths = OutputQuantiles(0.5, min_samples=1)
    for length in (5, 10, 15, 100, 200):
        lengths.observe("a", length)
    assert lengths.remaining_tokens("a", 0, 1000) == 15
    assert lengths.remaining_tokens("a", 20, 1000) == 80
    assert lengths.remaining_tokens("a", 300, 1000) == 300, "longer than all: as much again"
    assert lengths.remaining_tokens("a", 20, 50) == 30, "never beyond what is allowed"


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(0, 60), st.integers(1, 60))
def test_what_remains_is_at_least_one_token_and_at_most_what_is_allowed(
    lengths: list[int], generated: int, more: int
) -> None:
    known = OutputQuantiles(window=16, min_samples=4)
    for length in lengths:
        known.observe("a", length)
    assert 1 <= known.remaining_tokens("a", generated, generated + more) <= more


def test_old_answers_and_old_tenants_are_forgotten() -> None:
    lengths = OutputQuantiles(1.0, window=2, min_samples=1, max_tenants=2)
    for length in (100, 5, 5):
        lengths.observe("a", length)
    assert lengths.remaining_tokens("a", 0, 500) == 5
    lengths.observe("b", 1)
    lengths.observe("c", 1)
    assert lengths.remaining_tokens("a", 0, 500) == 500


def test_a_quantile_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"quantile is 1\.5"):
        OutputQuantiles(1.5)
