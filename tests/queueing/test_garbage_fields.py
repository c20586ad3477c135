"""Nonsense in a field of one job's record stops neither its end nor anything about another job."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import redis
from tests.queueing.conftest import MODEL, TAG, emit, stop

from headway.queueing.admission import Admission
from headway.queueing.claims import Fenced
from headway.queueing.events import START, EndEvent
from headway.queueing.messages import Job
from headway.queueing.settings import QueueSettings
from headway.queueing.settling import catch_up, keep_reservations, settle

if TYPE_CHECKING:
    from tests.queueing.conftest import OpenQueue

QUICK = QueueSettings(lease_seconds=0.05, reservation_seconds=0.2)
FIELDS = (
    *("state", "band", "tenant", "choices", "epoch", "cost", "reason", "error", "created", "deadline"),
    *("reserved", "log", "metadata", "n", "attempts", "worker", "token", "back", "charged", "paid", "parent"),
)
NONSENSE: tuple[Any, ...] = ("garbage", "", "-1", "1e300", b"\xff\x00", '{"x":1}')


async def look_around(queue: Any) -> None:
    """Whatever operators and keepers ask."""
    await queue.waiting_jobs(MODEL)
    await queue.running_jobs(MODEL)
    await queue.recent_jobs(MODEL)
    await queue.tenants(MODEL)
    await queue.depth(MODEL)
    await catch_up(queue, "acme", MODEL)
    await keep_reservations(queue, 0.2)
    await settle(queue, MODEL)


@pytest.mark.parametrize("field", FIELDS)
async def test_every_job_ends_and_others_as_they_would(
    redis_url: str, open_queue: OpenQueue, field: str
) -> None:
    queue = open_queue(redis_url, QUICK)
    await queue.tenant_store.set("acme", {"concurrency": 500})
    with redis.Redis.from_url(redis_url) as raw:
        for number, value in enumerate(NONSENSE):
            names = [f"{number}{name}" for name in ("ended", "runs", "waits", "sound")]
            for name in names:
                job = Job(model=MODEL, prompt="x", tenant="acme", deadline_seconds=60)
                await Admission(queue).submit(job, key=name)
            ended, running = await queue.claim(MODEL, "w", 2)
            await queue.emit([emit(ended, 1), emit(running, 1)])
            await queue.finish([stop(ended, 1)])
            for name in names[:3]:
                raw.hset(f"j:{TAG}:{name}", field, value)
            await look_around(queue)
            claims = await queue.claim(MODEL, "w2", 9)
            sound = next(claim for claim in claims if claim.job_id.endswith("sound"))
            assert await queue.finish([stop(sound, 0)]) == (Fenced.OK,)
            await queue.finish([stop(claim, 0) for claim in claims if claim is not sound])
            await asyncio.sleep(0.06)
            await queue.reap(MODEL)
            await queue.finish([stop(claim, 1) for claim in await queue.claim(MODEL, "w3", 9)])
            await look_around(queue)
            for name in names:
                *_, end = await queue.read(f"tiny:0:{name}", START, wait_seconds=0)
                assert isinstance(end, EndEvent), (name, value)
            depth = await queue.depth(MODEL)
            assert (sum(depth.queued.values()), depth.running) == (0, 0), value


@pytest.mark.parametrize("text", ["garbage", "", "-1", '{"x":1}', "[]"])
async def test_an_answer_that_is_none_is_not_kept(redis_url: str, open_queue: OpenQueue, text: str) -> None:
    queue = open_queue(redis_url, QUICK)
    await queue.tenant_store.set("acme", {"concurrency": 5})
    await Admission(queue).submit(Job(model=MODEL, prompt="x", tenant="acme"), key="k")
    (claim,) = await queue.claim(MODEL, "w", 1)
    with redis.Redis.from_url(redis_url) as raw:
        raw.set(f"r:{TAG}:k", text)
        assert await queue.result("tiny:0:k") is None, "not yet"
        await queue.finish([stop(claim, 0)])
        raw.set(f"r:{TAG}:k", text)
        await look_around(queue)
        (end,) = await queue.read("tiny:0:k", START, wait_seconds=0)
        assert isinstance(end, EndEvent)


async def test_strangers_among_the_settlements_hold_up_none(redis_url: str, open_queue: OpenQueue) -> None:
    queue = open_queue(redis_url, QUICK)
    await queue.tenant_store.set("acme", {"concurrency": 5})
    strange = {
        "job": "k",
        "tenant": "{x}",
        "reserved": "n",
        "prompt": "1",
        "completion": "1",
        "reason": "stop",
    }
    with redis.Redis.from_url(redis_url) as raw:
        for number in range(120):
            raw.xadd(f"settle:{TAG}", strange if number % 2 else {"x": "y"})
        await Admission(queue).submit(Job(model=MODEL, prompt="x", tenant="acme"), key="k")
        (claim,) = await queue.claim(MODEL, "w", 1)
        await queue.finish([stop(claim, 1)])
        await settle(queue, MODEL)
        assert raw.xlen(f"settle:{TAG}") == 0
        assert raw.zcard("inf:{t:acme}") == 0
