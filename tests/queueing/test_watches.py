"""Many readers of one process look together, and none of them sees another's stream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import redis
from tests.queueing.conftest import BODY, MODEL, TAG, emit, token

from headway.queueing.events import START, Cursor, StreamEvent
from headway.queueing.settings import QueueSettings

if TYPE_CHECKING:
    from tests.queueing.conftest import OpenQueue

    from headway.queueing.claims import Claim
    from headway.queueing.redis_queue import RedisQueue

PATIENT = QueueSettings(poll_seconds=60.0)
"""Only a hint wakes a reader."""
READERS = 20


def calls(raw: Any, command: str) -> int:
    stats = raw.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


async def claims_of(queue: RedisQueue, jobs: int) -> tuple[Claim, ...]:
    for _ in range(jobs):
        await queue.submit_body(MODEL, BODY)
    return await queue.claim(MODEL, "w", jobs)


async def hints_are_heard(url: str) -> None:
    with redis.Redis.from_url(url) as raw:
        while raw.pubsub_numpat() < 1:
            await asyncio.sleep(0.005)


async def all_wait(queue: RedisQueue, readers: int) -> None:
    """Return once so many have looked, found nothing, and wait."""
    watches = queue._reader._watches
    async with asyncio.timeout(10):
        while len(watches) < readers or any(
            watch.entries is not None for of_job in watches._by_job.values() for watch in of_job
        ):
            await asyncio.sleep(0.002)


async def all_read(
    queue: RedisQueue, claims: tuple[Claim, ...], after: Cursor
) -> list[tuple[StreamEvent, ...]]:
    async with asyncio.timeout(20):
        return await asyncio.gather(*(queue.read(c.job_id, after, wait_seconds=30) for c in claims))


async def test_readers_who_follow_are_served_by_one_command_for_each_write(
    redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(redis_url, PATIENT)
    claims = await claims_of(queue, READERS)
    await queue.emit([emit(claim, 1) for claim in claims])
    assert await all_read(queue, claims, START) == [(token(1),)] * READERS
    await hints_are_heard(redis_url)
    with redis.Redis.from_url(redis_url) as raw:
        single, together = calls(raw, "xrange"), calls(raw, "xread")
        for at in range(2, 7):
            reading = asyncio.create_task(all_read(queue, claims, Cursor(at - 1)))
            await all_wait(queue, READERS)
            await queue.emit([emit(claim, at) for claim in claims])
            assert await reading == [(token(at),)] * READERS
        assert calls(raw, "xread") - together == 5
        assert calls(raw, "xrange") == single


async def test_a_stream_that_somebody_wrote_over_keeps_nobody_else_from_reading(
    redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(redis_url, PATIENT)
    claims = await claims_of(queue, 4)
    await queue.emit([emit(claim, 1) for claim in claims])
    await all_read(queue, claims, START)
    await hints_are_heard(redis_url)
    spoilt, *others = claims
    with redis.Redis.from_url(redis_url) as raw:
        raw.set(f"o:{TAG}:{spoilt.job_id.rpartition(':')[2]}", "no stream")
    waiting = asyncio.create_task(queue.read(spoilt.job_id, Cursor(1), wait_seconds=30))
    reading = asyncio.create_task(all_read(queue, tuple(others), Cursor(1)))
    await asyncio.sleep(0.01)
    await queue.emit([emit(claim, 2) for claim in others])
    queue._reader._watches.ring_all()  # the spoilt one looks beside the others
    assert await reading == [(token(2),)] * 3
    assert not waiting.done(), "its next owner, or its end, puts a stream there"
    waiting.cancel()


async def test_several_readers_of_one_stream_each_go_on_from_their_own_place(
    redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(redis_url, PATIENT)
    (claim,) = await claims_of(queue, 1)
    await queue.emit([emit(claim, 1)])
    assert await queue.read(claim.job_id, START, wait_seconds=30) == (token(1),)
    await hints_are_heard(redis_url)
    await queue.emit([emit(claim, 2)])
    assert await queue.read(claim.job_id, Cursor(1), wait_seconds=30) == (token(2),)
    both = asyncio.gather(
        queue.read(claim.job_id, Cursor(1), wait_seconds=30),
        queue.read(claim.job_id, Cursor(2), wait_seconds=30),
        queue.read(claim.job_id, Cursor(2), wait_seconds=30),
    )
    await asyncio.sleep(0.02)
    await queue.emit([emit(claim, 3)])
    async with asyncio.timeout(20):
        first, second, third = await both
    assert first in ((token(2),), (token(2), token(3)))
    assert second == third == (token(3),)


async def test_a_reader_whose_hint_is_lost_polls(redis_url: str, open_queue: OpenQueue) -> None:
    queue = open_queue(redis_url, QueueSettings(poll_seconds=0.05))
    (claim,) = await claims_of(queue, 1)
    await queue.emit([emit(claim, 1)])
    await queue.read(claim.job_id, START, wait_seconds=30)
    key = f"o:{TAG}:{claim.job_id.rpartition(':')[2]}"
    with redis.Redis.from_url(redis_url) as raw:
        reading = asyncio.create_task(queue.read(claim.job_id, Cursor(1), wait_seconds=30))
        await asyncio.sleep(0.02)
        raw.xadd(key, {"t": "t2 ", "k": "2"}, id="2-0")  # nobody is told
        async with asyncio.timeout(10):
            assert await reading == (token(2),)


async def test_of_many_readers_whose_hints_are_lost_each_polls_in_its_turn_while_others_are_heard(
    redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(redis_url, QueueSettings(poll_seconds=0.05))
    claims = await claims_of(queue, 300)
    await queue.emit([emit(claim, 1) for claim in claims])
    await all_read(queue, claims, START)
    await hints_are_heard(redis_url)
    with redis.Redis.from_url(redis_url) as raw:
        reading = asyncio.create_task(all_read(queue, claims, Cursor(1)))
        await all_wait(queue, len(claims))
        with raw.pipeline() as untold:
            for claim in claims:
                key = claim.job_id.rpartition(":")[2]
                untold.xadd(f"o:{TAG}:{key}", {"t": "t2 ", "k": "2"}, id="2-0")
            untold.execute()
        looks = calls(raw, "xread")
        while not reading.done():
            raw.publish(f"hint:{TAG}", "another")
            await asyncio.sleep(0.005)
        assert await reading == [(token(2),)] * 300
        assert calls(raw, "xread") - looks <= 3, "128 at a time, each of them once"


async def test_a_reader_that_is_cancelled_leaves_no_watch(redis_url: str, open_queue: OpenQueue) -> None:
    queue = open_queue(redis_url, PATIENT)
    (claim,) = await claims_of(queue, 1)
    reading = asyncio.create_task(queue.read(claim.job_id, START, wait_seconds=30))
    async with asyncio.timeout(10):
        while not len(queue._reader._watches):
            await asyncio.sleep(0.005)
    reading.cancel()
    await asyncio.wait((reading,))
    assert len(queue._reader._watches) == 0
