"""The copy of limits and keys that each process holds: current, and there when the server is not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
import pytest
from prometheus_client import CollectorRegistry

from headway.gateway.app import create_app
from headway.gateway.settings import GatewaySettings
from headway.queueing.admission import Admission
from headway.queueing.errors import QueueUnavailableError
from headway.queueing.messages import Job
from headway.queueing.redis_tenants import REFRESH_SECONDS

if TYPE_CHECKING:
    from tests.conftest import StartRedis
    from tests.queueing.conftest import OpenQueue

JOB = Job(model="tiny", prompt="x", tenant="acme")


async def test_a_change_by_one_process_is_seen_by_the_others_within_a_second(
    redis_url: str, open_queue: OpenQueue
) -> None:
    one, other = open_queue(redis_url), open_queue(redis_url)
    assert (await other.tenant_store.book()).tenants == {}
    await one.tenant_store.set("acme", {"rpm": 5})
    key = await one.tenant_store.add_key("acme", "", "hw-x")
    assert (await other.tenant_store.book()).tenants == {}  # no call yet: the copy is young
    await asyncio.sleep(REFRESH_SECONDS + 0.05)
    book = await other.tenant_store.book()
    assert (book.limits_of("acme").rpm, book.tenant_of("hw-x")) == (5, "acme")
    await one.tenant_store.revoke_key(key.digest)
    await asyncio.sleep(REFRESH_SECONDS + 0.05)
    assert (await other.tenant_store.book()).is_open


async def test_many_who_ask_at_once_are_one_look(redis_url: str, open_queue: OpenQueue) -> None:
    queue = open_queue(redis_url)
    books = await asyncio.gather(*(queue.tenant_store.book() for _ in range(50)))
    assert len({id(book) for book in books}) == 1


async def test_a_cancelled_caller_takes_the_look_from_nobody(redis_url: str, open_queue: OpenQueue) -> None:
    queue = open_queue(redis_url)
    first = asyncio.create_task(queue.tenant_store.book())
    second = asyncio.create_task(queue.tenant_store.book())
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).tenants == {}


async def test_while_the_server_is_away_the_last_copy_holds(
    start_redis: StartRedis, open_queue: OpenQueue
) -> None:
    server = start_redis("valkey9")
    queue, late = open_queue(server.url), open_queue(server.url)
    await queue.tenant_store.set("acme", {"rpm": 5})
    assert (await queue.tenant_store.book()).limits_of("acme").rpm == 5
    server.kill()
    await asyncio.sleep(REFRESH_SECONDS + 0.05)
    assert (await queue.tenant_store.book()).limits_of("acme").rpm == 5
    with pytest.raises(QueueUnavailableError):
        await late.tenant_store.book()
    with pytest.raises(QueueUnavailableError):
        await Admission(queue).submit(JOB)


async def test_fields_of_a_newer_version_and_rubbish_do_not_hide_the_rest(
    redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(redis_url)
    server = queue._server
    await server.call(
        "HSET", "tenants:{sys}", "acme", '{"rpm":5,"colour":"red"}', "bad", "not JSON", "x y", "{}"
    )
    await server.call("HSET", "keys:{sys}", "abc", "not JSON", "def", "{}")
    book = await queue.tenant_store.book()
    assert set(book.tenants) == {"acme"}
    assert book.limits_of("acme").rpm == 5
    assert book.keys == {}


@pytest.fixture
def restricted_url(start_redis: StartRedis) -> str:
    """A user who may use the lane tiny:0 and nothing else."""
    server = start_redis("redis7")
    rules = "on >pw resetkeys ~*{tiny:0}* resetchannels &hint:* +@all"
    assert server.command("ACL", "SETUSER", "lane", *rules.split()) == b"+OK\r\n"
    return f"{server.url}?username=lane&password=pw"


async def test_a_producer_that_may_not_read_the_limits_submits_without_them(
    restricted_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(restricted_url)
    assert not (await queue.tenant_store.book()).is_readable
    assert (await Admission(queue).submit(JOB)).created


async def test_a_gateway_that_may_not_read_the_keys_lets_nobody_in(
    restricted_url: str, open_queue: OpenQueue
) -> None:
    app = create_app(
        open_queue(restricted_url),
        GatewaySettings(),
        registry=CollectorRegistry(),
        clock=lambda: 0.0,
        wall_clock=lambda: 0.0,
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
        refused = await http.post("/v1/jobs", json={"model": "tiny", "prompt": "x"})
        index = (await http.get("/")).json()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_unsuitable")
    assert "keys:{sys}" in refused.json()["error"]["message"]
    assert index["open_mode"] is False
