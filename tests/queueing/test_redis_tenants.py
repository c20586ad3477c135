"""The copy of limits and keys that each process holds: current, and there when the server is not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import httpx
import pytest
from prometheus_client import CollectorRegistry

from headway.gateway.app import create_app
from headway.gateway.settings import GatewaySettings
from headway.queueing.admission import Admission
from headway.queueing.errors import QueueingError, QueueUnavailableError
from headway.queueing.messages import Job
from headway.queueing.redis_tenants import REFRESH_SECONDS
from headway.queueing.tenant_book import digest_of
from headway.queueing.tenants import TenantLimits

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
    assert set(book.broken_tenants) == {"bad", "x y"}
    assert (book.keys, set(book.broken_keys)) == ({}, {"abc", "def"})


@pytest.mark.parametrize(
    "entry",
    [
        "not JSON",
        "[]",
        "{}",
        '{"tenant":"a b","name":"","created_ms":1}',
        '{"tenant":"*","name":"","created_ms":1}',
        '{"tenant":"acme","name":"","created_ms":1e99}',
        '{"tenant":"acme","name":3,"created_ms":1}',
    ],
)
async def test_a_key_that_cannot_be_read_closes_the_service(
    redis_url: str, open_queue: OpenQueue, entry: str
) -> None:
    queue = open_queue(redis_url)
    await queue._server.call("HSET", "keys:{sys}", digest_of("hw-x"), entry)
    book = await queue.tenant_store.book()
    assert (book.is_open, book.keys, book.tenant_of("hw-x")) == (False, {}, None)
    assert f"headway keys revoke {digest_of('hw-x')[:12]}" in book.complaints[0]
    assert await queue.tenant_store.revoke_key(digest_of("hw-x"))
    assert (await queue.tenant_store.book()).is_open


@pytest.mark.parametrize(
    ("digest", "entry", "told"),
    [
        ("abc", '{"tenant":"acme","name":"","created_ms":1}', "64 hex digits"),
        ("a" * 64, "not JSON", "must be a JSON object"),
        ("a" * 64, '["tenant"]', "must be a JSON object"),
        ("a" * 64, '{"tenant":"a b","name":"","created_ms":1}', "tenant: must be"),
        ("a" * 64, '{"tenant":"","name":"","created_ms":1}', "tenant: must be"),
        ("a" * 64, '{"tenant":"*","name":"","created_ms":1}', "tenant: must be"),
        ("a" * 64, '{"tenant":"acme","created_ms":1}', "name: must be"),
        ("a" * 64, '{"tenant":"acme","name":"","created_ms":"1"}', "created_ms: must be"),
        ("a" * 64, '{"tenant":"acme","name":"","created_ms":1e99}', "created_ms: must be"),
    ],
)
async def test_a_key_that_no_tenant_could_use_is_refused_where_it_is_put(
    redis_url: str, open_queue: OpenQueue, digest: str, entry: str, told: str
) -> None:
    queue = open_queue(redis_url)
    with pytest.raises(QueueingError, match=told):
        await queue._server.fcall("headway_key_put", "{sys}", digest, entry)
    assert (await queue.tenant_store.book()).is_open


@pytest.mark.parametrize("entry", ["not JSON", "[1]", "7", '{"rpm":"many","tpm":7}'])
async def test_an_entry_that_cannot_be_read_is_told_and_repaired_by_set(
    redis_url: str, open_queue: OpenQueue, entry: str
) -> None:
    queue = open_queue(redis_url)
    store = queue.tenant_store
    await queue._server.call("HSET", "tenants:{sys}", "acme", entry)
    (complaint,) = (await store.book()).complaints
    assert "tenant acme cannot be read" in complaint
    limits = await store.set("acme", {"concurrency": 3})
    assert (limits.concurrency, limits.rpm, limits.tpm) == (3, None, 7 if "tpm" in entry else None)
    book = await store.book()
    assert (book.tenants, book.complaints) == ({"acme": limits}, ())


async def test_set_leaves_fields_of_a_newer_version_in_place(redis_url: str, open_queue: OpenQueue) -> None:
    queue = open_queue(redis_url)
    await queue._server.call("HSET", "tenants:{sys}", "acme", '{"rpm":5,"colour":"red"}')
    assert await queue.tenant_store.set("acme", {"tpm": 7}) == TenantLimits(rpm=5, tpm=7)
    assert b'"red"' in cast("bytes", await queue._server.call("HGET", "tenants:{sys}", "acme"))


async def test_a_restored_book_with_as_many_changes_as_the_lost_one_is_read_again(
    redis_url: str, open_queue: OpenQueue
) -> None:
    one, other = open_queue(redis_url), open_queue(redis_url)
    await one.tenant_store.set("acme", {"rpm": 1})
    backup = [await one._server.call("DUMP", key) for key in ("tenants:{sys}", "config:{sys}")]
    await one.tenant_store.set("acme", {"rpm": 2})
    assert (await other.tenant_store.book()).limits_of("acme").rpm == 2
    for key, dump in zip(("tenants:{sys}", "config:{sys}"), backup, strict=True):
        await one._server.call("RESTORE", key, 0, cast("bytes", dump), "REPLACE")
    await one.tenant_store.set("acme", {"rpm": 3})
    await asyncio.sleep(REFRESH_SECONDS + 0.05)
    assert (await other.tenant_store.book()).limits_of("acme").rpm == 3


@pytest.mark.parametrize("kind", ["tenants", "keys", "config"])
async def test_a_key_of_another_type_is_named_and_nothing_is_written(
    redis_url: str, open_queue: OpenQueue, kind: str
) -> None:
    queue = open_queue(redis_url)
    store = queue.tenant_store
    await queue._server.call("SET", f"{kind}:{{sys}}", "stray")
    told = f"{kind}:{{sys}}.*DEL {kind}:{{sys}}"
    with pytest.raises(QueueingError, match=told):
        await store.book()
    if kind != "keys":
        with pytest.raises(QueueingError, match=told):
            await store.set("acme", {"rpm": 1})
    if kind != "tenants":
        with pytest.raises(QueueingError, match=told):
            await store.add_key("acme", "", "hw-x")
    if kind == "config":
        assert await queue._server.call("EXISTS", "tenants:{sys}") == 0
        assert await queue._server.call("EXISTS", "keys:{sys}") == 0


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
