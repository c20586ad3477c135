"""A raw caller's bad argument is named, and nothing was written before it was found."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, cast

import pytest
import redis
from tests.queueing.conftest import TAG

if TYPE_CHECKING:
    from tests.queueing.conftest import OpenQueue

BODY = b'{"model":"tiny","prompt":"x","deadline_seconds":60,"idempotency_key":"same","metadata":{"a":"b"}}'
NONSENSE = ("nan", "inf", "-inf", "1e300", "-1", "many", "1e15000")

SUBMIT = ("9", "9", "9", "9", "9", "9", "", "")
SUBMIT_NAMES = (
    *("max_jobs", "idempotency_ms", "record_retention_ms"),
    *("max_tokens_waiting", "max_wait_ms", "patience_ms"),
)
CLAIM = ("w", "9", "t", "9000", "9", "9", "9", "9")
CLAIM_NAMES = (
    *("", "room", "", "lease_ms", "standard_age_ms", "batch_age_ms"),
    *("stream_retention_ms", "record_retention_ms"),
)
FINISH = ("9", "9", "stop", "{}", "{}", "", "", "0", "1", "0", "0", "0")
FINISH_NAMES = (
    *("stream_retention_ms", "record_retention_ms", "", "", "", "", ""),
    *("tokens", "part", "prompt_tokens", "served_tokens", "entries_before"),
)


def cases(good: tuple[str, ...], names: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each argument with a name, as each kind of nonsense that is out of its bounds."""
    for at, name in enumerate(names):
        for value in NONSENSE if name else ():
            if not (name == "served_tokens" and value == "-1"):
                yield name, (*good[:at], value, *good[at + 1 :])


def snapshot(raw: redis.Redis) -> dict[object, object]:
    """Every key with what it holds and whether it expires."""
    keys = [key.decode() for key in cast("list[bytes]", raw.keys("*"))]
    return {key: (raw.dump(key), raw.pexpiretime(key)) for key in keys}


def refused(raw: redis.Redis, function: str, name: str, *arguments: str | bytes) -> None:
    before = snapshot(raw)
    with pytest.raises(redis.ResponseError, match=f"^HEADWAYINVALID {name}: "):
        raw.fcall(function, 1, TAG, *arguments)
    assert snapshot(raw) == before, arguments


@pytest.fixture
async def raw(each_redis_url: str, open_queue: OpenQueue) -> AsyncIterator[redis.Redis]:
    await open_queue(each_redis_url).check_server()
    with redis.Redis.from_url(each_redis_url, protocol=2) as raw:
        yield raw


async def test_a_submit_with_a_bad_argument_leaves_nothing(raw: redis.Redis) -> None:
    for name, arguments in cases(SUBMIT, SUBMIT_NAMES):
        refused(raw, "headway_submit", name, "k", BODY, *arguments)
    for asked in ("{bad", "5", "[1]", "null", "{"):
        refused(raw, "headway_submit", "asked", "k", BODY, *SUBMIT[:7], asked)
    assert raw.keys("*") == []
    assert raw.fcall("headway_submit", 1, TAG, "k", BODY, *[""] * 8) == [b"created", b"k"]


async def test_metadata_with_a_number_that_is_none_accepts_the_job_whole(raw: redis.Redis) -> None:
    body = BODY.replace(b'"b"', b"nan")
    assert raw.fcall("headway_submit", 1, TAG, "k", body) == [b"created", b"k"]
    assert raw.fcall("headway_submit", 1, TAG, "k2", body) == [b"exists", b"k"]
    assert raw.zscore(f"q:{TAG}:standard:default", "k") is not None


async def test_a_claim_with_a_bad_argument_takes_no_job(raw: redis.Redis) -> None:
    raw.fcall("headway_submit", 1, TAG, "k", BODY)
    for name, arguments in cases(CLAIM, CLAIM_NAMES):
        refused(raw, "headway_claim", name, *arguments)
    refused(raw, "headway_claim", "worker", "", *CLAIM[1:])
    for least in ("", "better"):
        refused(raw, "headway_claim", "least", *CLAIM, least)
    for token in ("", "a b"):
        refused(raw, "headway_claim", "token", *CLAIM[:2], token, *CLAIM[3:])
    refused(raw, "headway_claim", "token", "w", "9")
    for name, count in {"lease_ms": 3, "record_retention_ms": 7}.items():
        refused(raw, "headway_claim", name, *CLAIM[:count])
    assert len(raw.fcall("headway_claim", 1, TAG, *CLAIM)) == 2


async def test_a_worker_with_a_bad_argument_leaves_its_job_as_it_was(raw: redis.Redis) -> None:
    raw.fcall("headway_submit", 1, TAG, "k", BODY)
    token = raw.fcall("headway_claim", 1, TAG, *CLAIM)[1][1]
    for name, arguments in cases(FINISH, FINISH_NAMES):
        refused(raw, "headway_finish", name, "k", token, *arguments)
    refused(raw, "headway_finish", "tokens", "k", token, "9", "9")
    for value in NONSENSE:
        refused(raw, "headway_renew", "lease_ms", value, "k", token)
        refused(raw, "headway_release", "stream_retention_ms", value, "9", "k", token)
        refused(raw, "headway_release", "record_retention_ms", "9", value, "k", token)
    assert raw.fcall("headway_finish", 1, TAG, "k", token, *FINISH) == b"ok"


async def test_upkeep_with_a_bad_argument_changes_nothing(raw: redis.Redis) -> None:
    raw.fcall("headway_submit", 1, TAG, "k", BODY)
    raw.fcall("headway_submit", 1, TAG, "gone", b'{"model":"tiny","prompt":"x"}')
    for value in NONSENSE:
        refused(raw, "headway_cancel", "stream_retention_ms", "k", "why", value, "9")
        refused(raw, "headway_cancel", "record_retention_ms", "k", "why", "9", value)
        refused(raw, "headway_reap", "max_attempts", value, "9", "9")
        refused(raw, "headway_reap", "record_retention_ms", "3", "9", value)
        refused(raw, "headway_expire_worker", "stream_retention_ms", "w", "3", value, "9")
        refused(raw, "headway_report", "ttl_ms", "w", "1", value)


async def test_a_job_posted_again_under_a_bad_limit_is_not_posted(raw: redis.Redis) -> None:
    raw.fcall("headway_submit", 1, TAG, "k", BODY)
    raw.fcall("headway_cancel", 1, TAG, "k", "why")
    for name, arguments in cases(SUBMIT, SUBMIT_NAMES):
        refused(raw, "headway_retry", name, "k", "new", *arguments)
