"""Readers that follow a stream: what they ask the server for, and what they leave behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import redis
from tests.queueing.conftest import BODY, MODEL, emit, token

from headway.queueing.events import START, Cursor, StreamEvent
from headway.queueing.settings import READ_LIMIT, QueueSettings

if TYPE_CHECKING:
    from tests.queueing.conftest import OpenQueue

PATIENT = QueueSettings(poll_seconds=60.0)
"""Only a hint wakes a reader."""


def reads(raw: Any) -> int:
    """How often streams were asked for entries."""
    stats = raw.info("commandstats")
    return int(stats.get("cmdstat_xrange", {"calls": 0})["calls"]) + int(
        stats.get("cmdstat_xread", {"calls": 0})["calls"]
    )


async def hints_are_heard(raw: Any) -> None:
    while raw.pubsub_numpat() < 1:
        await asyncio.sleep(0.005)


async def test_a_reader_that_follows_asks_once_for_each_entry(redis_url: str, open_queue: OpenQueue) -> None:
    queue = open_queue(redis_url, PATIENT)
    submitted = await queue.submit_body(MODEL, BODY)
    (claim,) = await queue.claim(MODEL, "w", 1)
    with redis.Redis.from_url(redis_url) as raw:
        reading = asyncio.create_task(queue.read(submitted.job_id, START, wait_seconds=30))
        await hints_are_heard(raw)
        await queue.emit([emit(claim, 1)])
        assert await reading == (token(1),)
        before = reads(raw)
        for at in range(2, 12):
            reading = asyncio.create_task(queue.read(submitted.job_id, Cursor(at - 1), wait_seconds=30))
            await asyncio.sleep(0.005)
            await queue.emit([emit(claim, at)])
            assert await reading == (token(at),)
        assert reads(raw) - before == 10


async def test_an_entry_that_comes_between_two_reads_is_not_waited_for(
    redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(redis_url, PATIENT)
    submitted = await queue.submit_body(MODEL, BODY)
    (claim,) = await queue.claim(MODEL, "w", 1)
    with redis.Redis.from_url(redis_url) as raw:
        reading = asyncio.create_task(queue.read(submitted.job_id, START, wait_seconds=30))
        await hints_are_heard(raw)
        await queue.emit([emit(claim, 1)])
        assert await reading == (token(1),)
        await queue.emit([emit(claim, 2)])
        async with asyncio.timeout(10):
            assert await queue.read(submitted.job_id, Cursor(1), wait_seconds=30) == (token(2),)


async def test_a_reader_far_behind_does_not_wait_between_its_pieces(
    redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(redis_url, PATIENT)
    submitted = await queue.submit_body(MODEL, BODY)
    (claim,) = await queue.claim(MODEL, "w", 1)
    for at in range(1, READ_LIMIT + 10):
        await queue.emit([emit(claim, at)])
    events: tuple[StreamEvent, ...] = ()
    async with asyncio.timeout(10):
        while len(events) < READ_LIMIT + 9:
            after = events[-1].cursor if events else START
            events += await queue.read(submitted.job_id, after, wait_seconds=30)
    assert events == tuple(token(at) for at in range(1, READ_LIMIT + 10))


async def test_what_a_reader_that_stays_away_leaves_is_forgotten(
    redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(redis_url, QueueSettings(watch_seconds=0.02))
    submitted = await queue.submit_body(MODEL, BODY)
    (claim,) = await queue.claim(MODEL, "w", 1)
    await queue.emit([emit(claim, 1)])
    assert await queue.read(submitted.job_id, START, wait_seconds=5) == (token(1),)
    assert len(queue._reader._standing) == 1
    async with asyncio.timeout(10):
        while queue._reader._standing or len(queue._reader._watches):
            await asyncio.sleep(0.01)
    await queue.emit([emit(claim, 2)])
    assert await queue.read(submitted.job_id, Cursor(1), wait_seconds=5) == (token(2),)
