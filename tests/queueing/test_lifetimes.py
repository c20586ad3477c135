"""Nothing stays for ever that should not, nothing goes that is still owed, no key is undocumented."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import redis
from tests.queueing.conftest import BODY, MODEL, TAG, emit, stop

import headway.queueing.keys as keys_module
from headway.queueing.messages import Job
from headway.queueing.settings import QueueSettings

if TYPE_CHECKING:
    from tests.queueing.conftest import OpenQueue

DEADLINE_BODY = b'{"model":"tiny","prompt":"x","deadline_seconds":60}'


def per_job(raw: Any, key: str) -> dict[str, int]:
    """Milliseconds to live of each key of a job; -1: for good."""
    names = [f"{kind}:{TAG}:{key}" for kind in "jpro"]
    return {name[0]: raw.pttl(name) for name in names if raw.exists(name)}


async def test_what_is_owed_has_no_lifetime(each_redis_url: str, open_queue: OpenQueue) -> None:
    queue = open_queue(each_redis_url)
    await queue.submit_body(MODEL, BODY, key="k")
    with redis.Redis.from_url(each_redis_url) as raw:
        assert per_job(raw, "k") == {"j": -1, "p": -1}
        (claim,) = await queue.claim(MODEL, "w", 1)
        await queue.emit([emit(claim, 1)])
        assert per_job(raw, "k") == {"j": -1, "p": -1, "o": -1}
        await queue.release([(claim.job_id, claim.token)])
        assert per_job(raw, "k") == {"j": -1, "p": -1, "o": -1}


async def test_after_the_end_everything_of_a_job_has_its_lifetime(
    each_redis_url: str, open_queue: OpenQueue
) -> None:
    settings = QueueSettings(stream_retention_seconds=100, record_retention_seconds=1000)
    queue = open_queue(each_redis_url, settings)
    for key in ("finished", "cancelled"):
        await queue.submit_body(MODEL, BODY, key=key)
    await queue.cancel("tiny:0:cancelled", "stop")
    (claim,) = await queue.claim(MODEL, "w", 1)
    await queue.finish([stop(claim, 0)])
    with redis.Redis.from_url(each_redis_url) as raw:
        for key in ("finished", "cancelled"):
            left = per_job(raw, key)
            assert set(left) == {"j", "p", "r", "o"}
            assert 0 < left["o"] <= 100_000
            assert all(900_000 < left[kind] <= 1_000_000 for kind in "jpr")


async def test_a_job_with_a_deadline_leaves_nothing_if_every_process_dies(
    each_redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(each_redis_url)
    await queue.submit_body(MODEL, DEADLINE_BODY, key="k")
    (claim,) = await queue.claim(MODEL, "w", 1)
    await queue.emit([emit(claim, 1), emit(claim, 2)])
    with redis.Redis.from_url(each_redis_url) as raw:
        left = per_job(raw, "k")
    assert set(left) == {"j", "p", "o"}
    assert all(3_600_000 < each <= 3_660_000 for each in left.values())


async def test_a_thousand_jobs_leave_only_what_is_kept(redis_url: str, open_queue: OpenQueue) -> None:
    settings = QueueSettings(stream_retention_seconds=0.001, record_retention_seconds=0.001)
    queue = open_queue(redis_url, settings)
    for n in range(1000):
        await queue.submit_body(MODEL, DEADLINE_BODY if n % 2 else BODY, key=f"k{n}")
    while claims := await queue.claim(MODEL, "w", 100):
        await queue.emit([emit(claim, 1) for claim in claims])
        await queue.release([(claim.job_id, claim.token) for claim in claims[:20]])
        await queue.finish([stop(claim, 1) for claim in claims[20:]])
        if len(claims) <= 20:
            break
    await queue.finish([stop(claim, 1) for claim in await queue.claim(MODEL, "w", 100)])
    with redis.Redis.from_url(redis_url) as raw:
        left = {name.decode().split(":")[0] for name in raw.scan_iter(count=1000)}
        assert left - {"j", "p", "r", "o"} <= {"wake", "lane", "c", "seen", "tenant", "recent", "used"}
        assert raw.zcard(f"lease:{TAG}") == raw.zcard(f"due:{TAG}") == 0
        assert raw.xlen(f"recent:{TAG}") < 1200


async def test_every_key_on_the_server_is_in_the_table(redis_url: str, open_queue: OpenQueue) -> None:
    queue = open_queue(redis_url, QueueSettings(max_attempts=1))
    for n in range(3):
        await queue.submit(
            Job(model=MODEL, prompt="x", idempotency_key=f"i{n}", deadline_seconds=9), key=f"k{n}"
        )
    one, two = await queue.claim(MODEL, "w", 2)
    await queue.emit([emit(one, 1)])
    await queue.cancel(one.job_id, "stop")
    await queue.release([(two.job_id, two.token)])
    await queue.expire_worker(MODEL, "w")
    row = re.compile(r"^(\w+):\{[^ ]+ +(stream|list|hash|zset|string|set)\b", re.MULTILINE)
    table = set(row.findall(keys_module.__doc__ or ""))
    with redis.Redis.from_url(redis_url) as raw:
        found = {name.decode().split(":")[0]: raw.type(name).decode() for name in raw.scan_iter(count=1000)}
    assert len(found) >= 11
    assert found.items() <= table
