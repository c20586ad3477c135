"""A network that delivers twice, and a server that forgot what it had answered."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import redis
from tests.queueing.conftest import BODY, MODEL, TAG, emit, stop

from headway.queueing.claims import Emit, Fenced
from headway.queueing.events import START, Cursor, EndEvent, EndReason
from headway.queueing.redis_queue import RedisQueue

if TYPE_CHECKING:
    from tests.queueing.conftest import OpenQueue


class Draws(random.Random):
    """The same number for each claim, as if the network delivered one claim several times."""

    def getrandbits(self, k: int, /) -> int:
        return 7 & ((1 << k) - 1)


async def test_a_claim_delivered_a_second_time_gives_its_first_owner_nothing_back(
    each_redis_url: str, open_queue: OpenQueue
) -> None:
    """Its first owner lost the job before the duplicate comes: who holds the old token writes nothing."""
    repeating = RedisQueue(each_redis_url, rng=Draws())
    other = open_queue(each_redis_url)
    try:
        await other.submit_body(MODEL, BODY, key="k")
        (first,) = await repeating.claim(MODEL, "w1", 1)
        await other.expire_worker(MODEL, "w1")
        (second,) = await other.claim(MODEL, "w2", 1)
        await other.emit([emit(second, 1)])
        await other.release([(second.job_id, second.token)])
        (third,) = await repeating.claim(MODEL, "w1", 1)
        assert third.token not in (first.token, second.token)
        assert await other.emit([emit(first, 1, 2)]) == (Fenced.LOST,)
        assert await other.finish([stop(first, 0)]) == (Fenced.LOST,)
        assert await other.finish([stop(third, 1)]) == (Fenced.OK,)
    finally:
        await repeating.close()


async def test_an_owner_who_knows_more_than_the_server_leaves_no_gap(
    each_redis_url: str, open_queue: OpenQueue
) -> None:
    """A failover or a slow disk lost acknowledged tokens: the next owner begins at what is left."""
    queue = open_queue(each_redis_url)
    await queue.submit_body(MODEL, BODY, key="k")
    (claim,) = await queue.claim(MODEL, "w1", 1)
    assert await queue.emit([emit(claim, 1, 2)]) == (Fenced.OK,)
    with redis.Redis.from_url(each_redis_url) as raw:
        raw.xdel(f"o:{TAG}:k", "2-0")
    ahead = emit(claim, 3)
    assert await queue.emit([Emit(ahead.job_id, ahead.token, ahead.entries, entries_before=2)]) == (
        Fenced.LOST,
    )
    assert await queue.finish([stop(claim, 3)]) == (Fenced.LOST,)
    assert (await queue.reap(MODEL)).requeued == (claim.job_id,)
    (heir,) = await queue.claim(MODEL, "w2", 1)
    assert [event.cursor for event in heir.committed] == [Cursor(1)]
    assert await queue.emit([emit(heir, 2, 3)]) == (Fenced.OK,)
    assert await queue.finish([stop(heir, 3)]) == (Fenced.OK,)
    cursors = [event.cursor for event in await queue.read(claim.job_id, START, wait_seconds=0)]
    assert cursors == [Cursor(1), Cursor(2), Cursor(3), Cursor(3, 1)]


async def test_a_reader_ahead_of_a_server_that_forgot_is_still_told_the_end(
    each_redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(each_redis_url)
    await queue.submit_body(MODEL, BODY, key="k")
    await queue.cancel("tiny:0:k", "why")
    (end,) = await queue.read("tiny:0:k", Cursor(5), wait_seconds=0)
    assert isinstance(end, EndEvent)
    assert end.reason is EndReason.CANCELLED
    assert await queue.read("tiny:0:k", end.cursor, wait_seconds=0) == ()
