"""Names of lanes and jobs."""

from __future__ import annotations

from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.queueing.errors import InvalidJobError, UnknownJobError
from headway.queueing.ids import JobId, check_key, lane_of, new_key
from headway.queueing.messages import MODEL_PATTERN


def _can_have_lane(model: str) -> bool:
    return len(model) <= 128 and "--" not in model.replace("/", "-")


@given(st.from_regex(MODEL_PATTERN, fullmatch=True).filter(_can_have_lane))
def test_a_lane_determines_its_model(model: str) -> None:
    lane = lane_of(model)
    assert lane.endswith(":0")
    assert lane[:-2].replace("--", "/") == model
    assert JobId.parse(f"{lane}:key") == JobId(lane, "key")


@pytest.mark.parametrize(
    "model", ["", "a--b", "a-/b", "a/-b", "/a", "a/b/c", "a b", "{a}", "a:b", "x" * 129, "a\n"]
)
def test_a_name_that_is_no_model_has_no_lane(model: str) -> None:
    with pytest.raises(InvalidJobError):
        lane_of(model)


def test_fresh_keys_are_keys_and_sort_by_time() -> None:
    rng, seconds = Random(1), count(1_700_000_000.0)
    keys = [new_key(lambda: next(seconds), rng) for _ in range(50)]
    assert keys == sorted(set(keys))
    assert [check_key(key) for key in keys] == keys
    assert {len(key) for key in keys} == {26}


@given(st.text(max_size=100))
def test_any_text_is_a_job_id_or_unknown(text: str) -> None:
    try:
        job = JobId.parse(text)
    except UnknownJobError:
        return
    assert str(job) == text
