"""The server's quotas (Lua) and those in memory answer alike, whatever is called and however time passes.

The library's clock is replaced by a key for that; everything else is the library as it is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headway.queueing.functions import library
from headway.queueing.memory_quotas import MemoryQuotas
from headway.queueing.quota_values import Alive, Refusal, Reservation, Spent
from headway.queueing.redis_quotas import RedisQuotas
from headway.queueing.server import Server
from headway.queueing.settings import QueueSettings
from headway.queueing.tenant_store import QuotaStore
from headway.queueing.tenants import TenantLimits

if TYPE_CHECKING:
    from tests.conftest import RedisServer, StartRedis

CLOCK = """  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]"""
START = 1_700_006_400_000_000  # a midnight
SETTINGS = QueueSettings(reservation_seconds=2.0)
TENANT = "acme"
JOBS = ("m:0:a", "m:0:b", "m:0:c", "m:0:d", "m:0:e")

Step = tuple[Any, ...]

jobs = st.sampled_from(JOBS)
tokens = st.integers(0, 400)
counts = st.one_of(st.none(), st.integers(1, 5))
limits = st.builds(
    TenantLimits,
    rpm=counts,
    tpm=st.one_of(st.none(), st.integers(50, 600)),
    concurrency=counts,
    queued_jobs=counts,
    queued_tokens=st.one_of(st.none(), st.integers(50, 600)),
    daily_tokens=st.one_of(st.none(), st.integers(50, 1500)),
)
steps = st.one_of(
    st.tuples(st.just("pass_time"), st.one_of(st.integers(0, 3_000_000), st.integers(0, 30_000_000))),
    st.tuples(st.just("pass_time"), st.just(43_200_000_000)),
    st.tuples(st.just("reserve"), jobs, tokens),
    st.tuples(st.just("reserve"), jobs, tokens),
    st.tuples(st.just("unreserve"), jobs),
    st.tuples(st.just("settle"), jobs, tokens, tokens),
    st.tuples(st.just("keep"), jobs, st.booleans()),
    st.tuples(st.just("look"), st.integers(0, 4)),
    st.tuples(st.just("limit"), limits),
)


class Side:
    """One store, and the nonces that its callers remember."""

    def __init__(self, store: QuotaStore) -> None:
        self.store = store
        self.limits = TenantLimits(rpm=3, tpm=500, concurrency=4)
        self.nonces: dict[str, str] = {}
        self.calls = 0

    async def take(self, step: Step) -> object:
        return await getattr(self, step[0])(*step[1:])

    async def pass_time(self, microseconds: int) -> None:
        """The test moves the clock."""

    async def limit(self, changed: TenantLimits) -> None:
        self.limits = changed

    async def reserve(self, job: str, wanted: int) -> object:
        self.calls += 1
        answer = await self.store.reserve(
            TENANT, job, f"n{self.calls}", tokens=wanted, prompt_tokens=wanted // 3, limits=self.limits
        )
        if isinstance(answer, Reservation):
            self.nonces[job] = answer.nonce
        elif isinstance(answer, Refusal):
            # The server says milliseconds, rounded up.
            wait_ms = -(-round(answer.retry_after_seconds * 1e6) // 1000)
            return answer.limit, wait_ms, left(answer.standing), answer.tokens_left_today
        return answer.nonce, answer.is_new, left(answer.standing)

    async def unreserve(self, job: str) -> None:
        nonce = self.nonces.get(job, "none")
        await self.store.unreserve(Reservation(TENANT, job, nonce, True, standing=None))  # type: ignore[arg-type]  # not looked at

    async def settle(self, job: str, prompt: int, completion: int) -> object:
        return await self.store.settle(TENANT, [Spent(job, self.nonces.get(job, "none"), prompt, completion)])

    async def keep(self, job: str, is_running: bool) -> object:
        return await self.store.keep(TENANT, [Alive(job, self.nonces.get(job, "none"), is_running)])

    async def look(self, seconds: int) -> object:
        in_flight, ending = await self.store.ending(TENANT, seconds, 10)
        waiting = await self.store.waiting(TENANT, 10)
        usage = await self.store.usage(TENANT, self.limits)
        counts = (usage.in_flight, usage.waiting_jobs, usage.waiting_tokens, usage.held_tokens)
        return (
            in_flight,
            sorted_ids(ending),
            sorted_ids(await self.store.lapsed(TENANT, 10)),
            sorted_ids(waiting),
            counts,
            usage.spent_tokens,
            left(usage.standing),
        )


def sorted_ids(held: Any) -> list[str]:
    return sorted(each.job_id for each in held)


def left(standing: Any) -> object:
    return [
        rate if rate is None else (rate.limit, rate.remaining, -(-round(rate.reset_seconds * 1e6) // 1000))
        for rate in (standing.requests, standing.tokens)
    ]


@pytest.fixture
def patched_server(start_redis: StartRedis) -> RedisServer:
    assert library().count(CLOCK) == 1
    return start_redis("redis7")


@given(st.lists(steps, max_size=40))
@example(
    [
        ("limit", TenantLimits(tpm=500)),
        ("reserve", "m:0:a", 400),
        ("pass_time", 2_000_001),
        ("reserve", "m:0:b", 300),  # a has lapsed
        ("keep", "m:0:a", True),  # and is alive after all
        ("look", 4),
        ("settle", "m:0:a", 0, 50),
        ("settle", "m:0:a", 0, 50),
        ("look", 4),
    ]
)
@example(
    [
        ("limit", TenantLimits(tpm=100, daily_tokens=1000)),
        ("reserve", "m:0:a", 390),  # more than the bucket takes
        ("reserve", "m:0:b", 611),
        ("limit", TenantLimits(tpm=600, daily_tokens=1000)),
        ("reserve", "m:0:b", 611),
        ("pass_time", 2_000_001),
        ("keep", "m:0:a", True),
        ("settle", "m:0:a", 100, 290),
        ("reserve", "m:0:c", 611),
        ("look", 4),
    ]
)
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_calls_gives_the_same_answers(patched_server: RedisServer, taken: list[Step]) -> None:
    patched_server.command("FLUSHALL")
    asyncio.run(compare(patched_server.url, taken))


async def compare(url: str, taken: list[Step]) -> None:
    server, now = Server(url), START
    try:
        patched = library().replace(CLOCK, "  return tonumber(redis.call('GET', 'clock'))")
        await server.call("FUNCTION", "LOAD", "REPLACE", patched)
        await server.call("SET", "clock", now)
        memory = Side(MemoryQuotas(lambda: now / 1e6, SETTINGS))
        redis = Side(RedisQuotas(server, SETTINGS))
        for step in taken:
            if step[0] == "pass_time":
                now += step[1]
                await server.call("SET", "clock", now)
            assert await redis.take(step) == await memory.take(step), step
        assert await redis.take(("look", 3)) == await memory.take(("look", 3))
    finally:
        await server.close()


@pytest.mark.parametrize("key", ["rl", "inf", "res", "wait", "gone"])
@pytest.mark.parametrize("stray", ["SET", "LPUSH", "SADD"])
async def test_a_key_that_somebody_filled_with_another_type_stops_no_tenant(
    redis_url: str, key: str, stray: str
) -> None:
    server = Server(redis_url)
    side = Side(RedisQuotas(server, SETTINGS))
    await server.call(stray, f"{key}:{{t:{TENANT}}}", "stray")
    assert await side.reserve("m:0:a", 100) == ("n1", True, [(3, 2, 20_000), (500, 400, 12_000)])
    assert await side.settle("m:0:a", 10, 20) == 1
    assert (await side.reserve("m:0:b", 100)) is not None
    await server.call("DEL", f"{key}:{{t:{TENANT}}}")
    await server.call(stray, f"{key}:{{t:{TENANT}}}", "stray")
    for step in (("keep", "m:0:b", True), ("look", 4), ("settle", "m:0:b", 1, 1), ("unreserve", "m:0:b")):
        await side.take(step)
    await side.reserve("m:0:c", 10)
    assert "m:0:c" in str(await side.take(("look", 4)))
    await server.close()
