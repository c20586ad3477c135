"""Who ran when: what the records do not tell is not drawn as if they did."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from tests.services.bench.conftest import answered

from headway.services.bench.answer import Answer, Outcome
from headway.services.bench.result import ROW_FIELDS, request_row
from headway.services.bench.timeline_picture import timeline

WHOLE = [["waiting", 1.0, 1.2], ["waiting", 1.2, 1.3], ["prefill", 1.3, 1.5], ["decode", 1.5, 2.0]]
UNCLEAR = "waiting or prefill: not recorded, or no longer"


def request(job: str, outcome: Outcome = Outcome.FINISHED, status: int = 200) -> Answer:
    """Due after one second; tokens after half a second and a whole one more, if there are any."""
    times = [1.5, 2.0] if outcome is Outcome.FINISHED else []
    made = answered(1.0, times, outcome=outcome, ended=2.0)
    made.job_id, made.status = job, status
    return made


def drawn(*requests: Answer, from_seconds: float | None = 0.0, **phases: list[list[Any]]) -> str:
    workers = [{"steps": [[1.0, 0.1, 1, 5, 0, 0]], "from_seconds": from_seconds, "phases": phases}]
    rows = [request_row(each) for each in requests]
    point = {"window": [0.0, 5.0], "workers": workers, "requests_sent": rows}
    return timeline(point, ROW_FIELDS)


def bars(page: str) -> Counter[str]:
    return Counter(re.findall(r'<rect class="(\w+)"', page)) - Counter(["window"])


def test_a_request_that_was_recorded_whole_is_drawn_phase_by_phase() -> None:
    page = drawn(request("a"), a=WHOLE)
    assert bars(page) == {"wait": 3, "prefill": 1, "decode": 1}
    assert UNCLEAR not in page


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        ({}, {"unclear": 1, "decode": 1}),  # nothing of it is there any more
        ({"b": WHOLE[2:]}, {"unclear": 1, "prefill": 1, "decode": 1}),  # its arrival was pushed out
        ({"b": WHOLE[3:]}, {"unclear": 1, "decode": 1}),
    ],
)
def test_the_prefill_of_a_request_whose_record_is_gone_is_not_drawn_as_waiting(
    phases: dict[str, Any], expected: dict[str, int]
) -> None:
    page = drawn(request("a"), request("b"), a=WHOLE, **phases)
    of_a = Counter({"wait": 3, "prefill": 1, "decode": 1})
    assert bars(page) - of_a == expected
    assert UNCLEAR in page


def test_a_request_that_was_refused_at_the_door_waited() -> None:
    page = drawn(request("a"), request("", Outcome.REFUSED, 503), a=WHOLE)
    assert bars(page)["unclear"] == 0
    assert bars(page)["wait"] == 4


def test_without_any_record_waiting_and_prefill_are_one_and_the_legend_says_so() -> None:
    page = drawn(request("a"))
    assert bars(page) == {"wait": 1, "decode": 1}
    assert "the server&#x27;s own records would tell them apart" in page


def test_steps_that_were_pushed_out_are_said_to_be() -> None:
    assert "Steps are known from" not in drawn(request("a"), a=WHOLE)
    assert "Steps are known from 12.3 s on" in drawn(request("a"), a=WHOLE, from_seconds=12.34)
