"""A job whose own keys somebody wrote over, or had filled before it came, ends all the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import redis
from tests.queueing.conftest import BODY, MODEL, TAG, emit, stop

from headway.queueing.claims import Fenced
from headway.queueing.errors import QueueingError, UnknownJobError
from headway.queueing.events import START, EndEvent, EndReason, JobState
from headway.queueing.settings import QueueSettings

if TYPE_CHECKING:
    from tests.queueing.conftest import OpenQueue

QUICK = QueueSettings(lease_seconds=0.05)


@pytest.mark.parametrize("is_overwritten", [False, True])
async def test_a_running_job_whose_record_is_gone_ends_with_what_was_published(
    each_redis_url: str, open_queue: OpenQueue, *, is_overwritten: bool
) -> None:
    queue = open_queue(each_redis_url, QUICK)
    await queue.submit_body(MODEL, BODY, key="k")
    (claim,) = await queue.claim(MODEL, "w", 1)
    await queue.emit([emit(claim, 1, 2)])
    with redis.Redis.from_url(each_redis_url) as raw:
        raw.delete(f"j:{TAG}:k")
        if is_overwritten:
            raw.set(f"j:{TAG}:k", "garbage")
    with pytest.raises(UnknownJobError):
        await queue.status("tiny:0:k")
    assert await queue.renew([(claim.job_id, claim.token)]) == (Fenced.LOST,)
    await asyncio.sleep(0.06)
    assert (await queue.reap(MODEL)).dead_lettered == ("tiny:0:k",)
    *_, end = await queue.read("tiny:0:k", START, wait_seconds=0)
    assert isinstance(end, EndEvent)
    assert (end.reason, end.usage.completion_tokens) == (EndReason.ERROR, 2)
    (letter,) = await queue.dead_letters(MODEL)
    assert (await queue.redrive(MODEL, letter.entry_id)).created, "its body was kept"
    assert (await queue.depth(MODEL)).running == 0


@pytest.mark.parametrize("kind", ["j", "p", "r", "o", "idem"])
async def test_what_lay_in_a_jobs_keys_before_it_came_is_no_job(
    each_redis_url: str, open_queue: OpenQueue, kind: str
) -> None:
    queue = open_queue(each_redis_url, QUICK)
    with redis.Redis.from_url(each_redis_url) as raw:
        raw.rpush(f"{kind}:{TAG}:{'default:same' if kind == 'idem' else 'k'}", "garbage")
    body = b'{"model":"tiny","prompt":"x","idempotency_key":"same"}'
    assert (await queue.submit_body(MODEL, body, key="k")).created
    assert await queue.read("tiny:0:k", START, wait_seconds=0) == ()
    (claim,) = await queue.claim(MODEL, "w", 1)
    if await queue.emit([emit(claim, 1)]) != (Fenced.OK,):  # the next owner finds it removed
        await asyncio.sleep(0.06)
        await queue.reap(MODEL)
        (claim,) = await queue.claim(MODEL, "w", 1)
        assert await queue.emit([emit(claim, 1)]) == (Fenced.OK,)
    assert await queue.finish([stop(claim, 1)]) == (Fenced.OK,)
    assert (await queue.status("tiny:0:k")).reason is EndReason.STOP
    assert (await queue.retry("tiny:0:k", key="k2")).created


@pytest.mark.parametrize("text", ["garbage", "", "a b c", "k \xff", "{} x"])
async def test_an_idempotency_entry_that_names_no_job_is_replaced(
    each_redis_url: str, open_queue: OpenQueue, text: str
) -> None:
    queue = open_queue(each_redis_url)
    with redis.Redis.from_url(each_redis_url) as raw:
        raw.set(f"idem:{TAG}:default:same", text)
    body = b'{"model":"tiny","prompt":"x","idempotency_key":"same"}'
    assert (await queue.submit_body(MODEL, body, key="k")).created
    assert (await queue.submit_body(MODEL, body, key="k2")).job_id == "tiny:0:k"


async def test_a_retry_takes_the_place_of_what_is_no_record(redis_url: str, open_queue: OpenQueue) -> None:
    queue = open_queue(redis_url)
    await queue.submit_body(MODEL, BODY, key="k")
    await queue.cancel("tiny:0:k", "enough")
    with redis.Redis.from_url(redis_url) as raw:
        raw.set(f"j:{TAG}:new", "garbage")
    assert (await queue.retry("tiny:0:k", key="new")).created
    assert (await queue.status("tiny:0:new")).state is JobState.QUEUED


async def test_a_list_that_is_none_is_named_with_what_to_do(redis_url: str, open_queue: OpenQueue) -> None:
    queue = open_queue(redis_url)
    with redis.Redis.from_url(redis_url) as raw:
        for key, ask in {"workers:{fleet}": queue.workers, "models:{fleet}": queue.models}.items():
            raw.set(key, "garbage")
            with pytest.raises(QueueingError, match=f"the key {key} has another type.* then DEL it"):
                await ask()
