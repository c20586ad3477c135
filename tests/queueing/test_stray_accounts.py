"""Whatever is deleted or written over of an account, its jobs are served and nothing stays counted."""

from __future__ import annotations

import asyncio
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
import redis
from tests.queueing.conftest import MODEL, stop

from headway.queueing.admission import Admission
from headway.queueing.messages import Job
from headway.queueing.settings import QueueSettings
from headway.queueing.settling import catch_up, keep_reservations, settle
from headway.queueing.tenants import TenantLimits

if TYPE_CHECKING:
    from tests.queueing.conftest import OpenQueue

ACME = "acme"
LIMITS = {"rpm": 1000, "tpm": 1000, "concurrency": 100, "queued_jobs": 100, "queued_tokens": 900}
QUICK = QueueSettings(reservation_seconds=0.2)
KINDS = ("rl", "inf", "wait", "res", "gone")
SUBSETS = [chosen for count in (1, 2, 5) for chosen in combinations(KINDS, count)]


def spoil(raw: redis.Redis, kinds: tuple[str, ...], *, is_overwritten: bool) -> None:
    for kind in kinds:
        key = f"{kind}:{{t:{ACME}}}"
        raw.delete(key)
        if is_overwritten:
            raw.rpush(key, "garbage")


@pytest.mark.parametrize("is_overwritten", [False, True])
async def test_an_account_whose_keys_were_spoilt_counts_what_lives_and_ends_at_zero(
    redis_url: str, open_queue: OpenQueue, *, is_overwritten: bool
) -> None:
    queue = open_queue(redis_url, QUICK)
    await queue.tenant_store.set(ACME, LIMITS)
    job = Job.model_validate({"model": MODEL, "prompt": "x", "tenant": ACME, "sampling": {"max_tokens": 10}})
    with redis.Redis.from_url(redis_url) as raw:
        for chosen in SUBSETS:
            posted = [await Admission(queue).submit(job) for _ in range(3)]
            claims = await queue.claim(MODEL, "w", 1)
            spoil(raw, chosen, is_overwritten=is_overwritten)
            await keep_reservations(queue, 0.2)
            posted.append(await Admission(queue).submit(job))
            await catch_up(queue, ACME, MODEL)
            claims += await queue.claim(MODEL, "w", 9)
            assert len(claims) == len(posted), chosen
            await queue.finish([stop(claim, 0) for claim in claims])
            await settle(queue, MODEL)
            await asyncio.sleep(0.21)
            usage = await queue.quota_store.usage(ACME, TenantLimits.model_validate(LIMITS))
            counts = (usage.in_flight, usage.waiting_jobs, usage.waiting_tokens, usage.held_tokens)
            assert counts == (0, 0, 0, 0), chosen


@pytest.mark.parametrize("kind", ["inf", "wait", "rl"])
async def test_jobs_that_live_are_counted_again(redis_url: str, open_queue: OpenQueue, kind: str) -> None:
    queue = open_queue(redis_url, QueueSettings(reservation_seconds=1.0))
    await queue.tenant_store.set(ACME, LIMITS)
    for _ in range(3):
        await Admission(queue).submit(Job(model=MODEL, prompt="x", tenant=ACME))
    with redis.Redis.from_url(redis_url) as raw:
        spoil(raw, (kind,), is_overwritten=False)
    for _ in range(2):
        await keep_reservations(queue, 0.01)
        await asyncio.sleep(0.01)
    usage = await queue.quota_store.usage(ACME, TenantLimits.model_validate(LIMITS))
    assert (usage.in_flight, usage.waiting_jobs) == (3, 3)
    assert usage.held_tokens == usage.waiting_tokens > 0


@pytest.mark.parametrize("key", ["reserving:{sys}", "keeper:{sys}"])
@pytest.mark.parametrize("kind", ["string", "list"])
async def test_what_a_stranger_left_beside_the_accounts_stops_neither_jobs_nor_keepers(
    each_redis_url: str, open_queue: OpenQueue, key: str, kind: str
) -> None:
    queue = open_queue(each_redis_url, QueueSettings(reservation_seconds=0.4))
    await queue.tenant_store.set(ACME, {"concurrency": 9})
    with redis.Redis.from_url(each_redis_url) as raw:
        if kind == "string":
            raw.set(key, "garbage")
        else:
            raw.rpush(key, "garbage")
        await keep_reservations(queue, 0.4)
        await Admission(queue).submit(Job(model=MODEL, prompt="x", tenant=ACME))
        for _ in range(6):
            await asyncio.sleep(0.1)
            await keep_reservations(queue, 0.4)
        assert raw.zcard(f"inf:{{t:{ACME}}}") == 1, "kept beyond its lease"
        assert 0 < raw.pttl("keeper:{sys}") <= 100


async def test_a_debt_beyond_what_is_counted_exactly_leaves_the_account_readable(
    redis_url: str, open_queue: OpenQueue
) -> None:
    await open_queue(redis_url).check_server()
    tag = f"{{t:{ACME}}}"
    with redis.Redis.from_url(redis_url, protocol=2) as raw:
        limits = ("", "100", "", "", "", "9000")
        for job in ("a", "b"):
            raw.fcall("headway_reserve", 1, tag, f"tiny:0:{job}", "n", 30_000, 10, 1, *limits)
        raw.fcall("headway_settle", 1, tag, "tiny:0:a", "n", 10**14, 1)
        account = raw.fcall("headway_account", 1, tag, "", "100")
    in_flight, waiting, _, held, spent, *_ = map(int, filter(None, account))
    assert (in_flight, waiting, held, spent) == (1, 1, 10, 10**12 + 1)


async def test_names_that_can_be_none_hold_up_neither_a_submit_nor_the_keepers(
    redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(redis_url, QueueSettings(reservation_seconds=0.4))
    await queue.tenant_store.set(ACME, {"concurrency": 5})
    with redis.Redis.from_url(redis_url, protocol=2) as raw:
        await Admission(queue).submit(Job(model=MODEL, prompt="x", tenant=ACME))
        (claim,) = await queue.claim(MODEL, "w", 1)
        for name in ("weird", "a:b", "x}{:0:k", "..:0:k"):
            raw.fcall("headway_reserve", 1, f"{{t:{ACME}}}", name, "n", 400, 1, 1)
        await queue.finish([stop(claim, 0)])
        await Admission(queue).submit(Job(model=MODEL, prompt="x", tenant=ACME))
        raw.zadd("reserving:{sys}", {"{x}": 1, "": 2, b"\xff": 3, "a b": 4})
        for _ in range(6):
            await asyncio.sleep(0.1)
            await keep_reservations(queue, 0.4)
    usage = await queue.quota_store.usage(ACME, TenantLimits(concurrency=5))
    assert usage.in_flight == 1, "the job that lives; the others lapsed"
