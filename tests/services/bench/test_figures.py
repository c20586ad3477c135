"""Figures are what their definitions say, to the last digit, on times that are made up."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.services.bench.conftest import answered

from headway.services.bench.answer import Answer, Outcome
from headway.services.bench.figures import curve, errors_of, is_good, point_figures, summary
from headway.services.bench.load import Loaded, Point
from headway.services.bench.result import ROW_FIELDS, read_row, request_row
from headway.services.bench.settings import Slos

NO_LIMITS = Slos(None, None, None)
moments = st.floats(0.0, 30.0, allow_nan=False)
gaps = st.lists(st.floats(0.001, 2.0), min_size=1, max_size=12)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    due, at, times = draw(moments), 0.0, []
    for gap in draw(gaps):
        at += gap
        times.append(due + at)
    tenant = draw(st.sampled_from(["a", "b", "c"]))
    return answered(due, times, tenant=tenant, outcome=draw(st.sampled_from(list(Outcome))))


def figures(
    given_answers: Sequence[Answer], slos: Slos = NO_LIMITS, window: tuple[float, float] = (10.0, 20.0)
) -> dict[str, Any]:
    loaded = Loaded(Point("0", rate=1.0), *window, answers=list(given_answers))
    return point_figures(loaded, slos, {})


@settings(max_examples=40)  # each has up to thirty answers
@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=60))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values: list[float]) -> None:
    told = summary(values)
    for percent in (50, 95, 99):
        rounded = sorted(round(value, 6) for value in values)
        enough = [
            value
            for value in rounded
            if sum(each <= value for each in rounded) * 100 >= percent * len(values)
        ]
        assert told[f"p{percent}"] == enough[0]
    assert told["max"] == round(max(values), 6)


@settings(max_examples=40)  # each has up to thirty answers
@given(st.lists(answers(), max_size=30))
def test_every_request_that_was_due_in_the_window_is_counted_once(made: list[Answer]) -> None:
    told = figures(made)
    due = [answer for answer in made if 10.0 <= answer.planned.seconds < 20.0]
    assert told["requests"] == len(due) == sum(told[outcome.value] for outcome in Outcome)


@settings(max_examples=40)  # each has up to thirty answers
@given(
    st.lists(answers(), max_size=30),
    st.floats(0.05, 5.0),
    st.floats(0.01, 1.0),
    st.floats(0.1, 10.0),
)
def test_goodput_counts_whole_answers_within_every_limit(
    made: list[Answer], ttft: float, tpot: float, e2e: float
) -> None:
    told = figures(made, Slos(ttft, tpot, e2e))
    good = judged = 0
    for answer in made:
        if not 10.0 <= answer.planned.seconds < 20.0 or answer.outcome is Outcome.CANCELLED:
            continue
        judged += 1
        times, due = list(answer.times), answer.planned.seconds
        mean = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0
        is_fast = times[0] - due <= ttft and mean <= tpot and times[-1] - due <= e2e
        good += answer.outcome is Outcome.FINISHED and is_fast
    assert told["goodput_per_second"] == pytest.approx(good / 10.0, abs=1e-4)
    assert told["attainment"] == (round(good / judged, 4) if judged else None)


@settings(max_examples=40)  # each has up to thirty answers
@given(st.lists(answers(), max_size=20), st.lists(moments, min_size=1, max_size=5))
def test_tokens_over_adjacent_windows_add_up_to_all_tokens(made: list[Answer], cuts: list[float]) -> None:
    edges = [0.0, *sorted(cuts), 1000.0]
    for answer in made:
        parts = [answer.tokens_between(start, end) for start, end in pairwise(edges)]
        assert math.isclose(sum(parts), answer.tokens)


@settings(max_examples=40)  # each has up to thirty answers
@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 50), min_size=2), st.data())
def test_the_jain_index_is_its_formula(tokens: dict[str, int], data: st.DataObject) -> None:
    weights = {name: data.draw(st.floats(0.5, 4.0)) for name in tokens}
    made = [answered(10.0, [11.0] * count, tenant=name) for name, count in tokens.items()]
    told = point_figures(Loaded(Point("0", rate=1.0), 10.0, 20.0, answers=made), NO_LIMITS, weights)
    shares = [count / weights[name] for name, count in tokens.items()]
    assert told["jain_index"] == pytest.approx(
        sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares)), abs=1e-4
    )


def test_times_are_counted_from_when_a_request_was_due_not_from_when_a_late_client_sent_it() -> None:
    answer = answered(10.0, [11.0, 11.5, 12.0])
    answer.sent = 10.9
    assert (answer.ttft_seconds, answer.tpot_seconds, answer.e2e_seconds) == (1.0, 0.5, 2.0)
    assert answer.late_seconds == pytest.approx(0.9)


def test_an_event_of_several_tokens_spreads_its_time_over_them() -> None:
    # Seven tokens in three events: six came after the first one, in 1.2 s.
    assert answered(0.0, [1.0, 1.6, 2.2], told=7).tpot_seconds == pytest.approx(0.2)


def test_what_the_client_cancelled_or_read_slowly_says_nothing_of_the_server() -> None:
    made = [
        answered(10.0, [10.1]),
        answered(11.0, [11.2, 19.0], outcome=Outcome.CANCELLED, cancel_after=2),
        answered(12.0, [19.9], is_slow=True),
    ]
    told = figures(made, Slos(1.0, None, None))
    assert (told["attainment"], told["goodput_per_second"]) == (1.0, 0.1)
    assert told["ttft_seconds"]["max"] == pytest.approx(0.1)
    assert (told["cancelled"], told["slow_readers"]) == (1, 1)


def test_a_refused_request_misses_its_limits_and_tells_how_long_the_refusal_took() -> None:
    refused = answered(10.0, [], outcome=Outcome.REFUSED, ended=10.03)
    refused.status, refused.error = 429, "quota_exceeded: 60 requests per minute"
    told = figures([refused, answered(10.0, [10.1])], Slos(1.0, None, None))
    assert told["attainment"] == 0.5
    assert told["refusal_seconds"]["p99"] == pytest.approx(0.03)
    assert told["errors"] == [
        {"status": 429, "outcome": "refused", "count": 1, "example": "quota_exceeded: 60 requests per minute"}
    ]
    assert errors_of([answered(0.0, [1.0])]) == []


def test_what_was_given_up_behind_the_door_is_told_apart_from_what_was_refused_at_it() -> None:
    made = [answered(10.0, [], outcome=Outcome.REFUSED, ended=10.0 + took) for took in (0.01, 3.0, 7.0)]
    for answer, status in zip(made, (503, 504, 500), strict=True):
        answer.status = status
    told = figures([*made, answered(10.0, [10.1])])
    assert told["refused"] == 3
    assert told["refusal_seconds"]["max"] == pytest.approx(0.01)
    assert told["given_up_seconds"]["max"] == pytest.approx(3.0)


@settings(max_examples=40)  # each has up to thirty answers
@given(st.lists(answers(), max_size=30), st.floats(0.05, 5.0), st.floats(0.01, 1.0), st.floats(0.1, 10.0))
def test_a_row_of_a_result_is_judged_as_the_request_itself(
    made: list[Answer], ttft: float, tpot: float, e2e: float
) -> None:
    for answer in made:
        slos = Slos(ttft, tpot, e2e)
        row = read_row(request_row(answer), ROW_FIELDS)
        assert is_good(row, slos) == is_good(rounded(answer), slos)
        assert request_row(row) == request_row(answer)


def rounded(answer: Answer) -> Answer:
    """With the times that a row has, to the hundredth of a millisecond."""
    answer.planned = replace(answer.planned, seconds=round(answer.planned.seconds, 5))
    answer.times = array("d", [round(time, 5) for time in answer.times])
    answer.ended = round(answer.ended or 0.0, 5)
    return answer


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.FINISHED])
def test_only_a_whole_answer_is_good(outcome: Outcome) -> None:
    assert is_good(answered(0.0, [0.1]), NO_LIMITS)
    assert not is_good(answered(0.0, [0.1], outcome=outcome), NO_LIMITS)


@settings(max_examples=40)  # each has up to thirty answers
@given(st.lists(st.floats(0, 100), min_size=1, max_size=500))
def test_a_curve_keeps_both_ends_and_its_order(values: list[float]) -> None:
    kept = curve(values)
    assert kept == sorted(kept)
    assert (kept[0], kept[-1]) == (round(min(values), 6), round(max(values), 6))
    assert len(kept) <= 101
