"""A server that would lose jobs is refused, and one that might is warned of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headway.queueing import functions
from headway.queueing.errors import ServerUnsuitableError
from headway.queueing.server import Server

if TYPE_CHECKING:
    from tests.conftest import StartRedis
    from tests.queueing.conftest import OpenQueue


async def test_a_good_server_gets_the_library_and_no_warning(
    start_redis: StartRedis, open_queue: OpenQueue
) -> None:
    server = start_redis("valkey9", "--appendonly", "yes")
    queue = open_queue(server.url)
    assert await queue.check_server() == ()
    assert b"headway" in server.command("FUNCTION", "LIST")
    assert await queue.check_server() == ()


async def test_a_server_that_evicts_is_refused_with_the_remedy(
    start_redis: StartRedis, open_queue: OpenQueue
) -> None:
    server = start_redis("redis7", "--maxmemory-policy", "allkeys-lru")
    with pytest.raises(ServerUnsuitableError, match="CONFIG SET maxmemory-policy noeviction"):
        await open_queue(server.url).check_server()


async def test_a_server_without_aof_is_warned_of(start_redis: StartRedis, open_queue: OpenQueue) -> None:
    (warning,) = await open_queue(start_redis("redis7").url).check_server()
    assert "appendonly yes" in warning


async def test_a_replica_is_refused(start_redis: StartRedis, open_queue: OpenQueue) -> None:
    server = start_redis("redis7", "--replicaof", "127.0.0.1", "1")
    with pytest.raises(ServerUnsuitableError, match="primary"):
        await open_queue(server.url).check_server()


async def test_a_wrong_password_is_told_apart_from_a_server_away(
    start_redis: StartRedis, open_queue: OpenQueue
) -> None:
    server = start_redis("redis7")
    server.command("ACL", "SETUSER", "default", ">secret")
    server.command("CONFIG", "SET", "requirepass", "secret")
    queue = open_queue(f"unix://:wrong@{server.socket}")
    with pytest.raises(ServerUnsuitableError, match="password"):
        await queue.check_server()
    with pytest.raises(ServerUnsuitableError, match="password"):
        await open_queue(server.url).check_server()
    assert len(await open_queue(f"unix://:secret@{server.socket}").check_server()) == 1


async def test_what_a_managed_server_forbids_is_a_warning(
    start_redis: StartRedis, open_queue: OpenQueue
) -> None:
    server = start_redis("valkey9")
    await open_queue(server.url).check_server()
    server.command(
        "ACL", "SETUSER", "tenant", "on", ">pw", "~*", "&*", "+@all", "-info", "-config", "-function"
    )
    warnings = await open_queue(f"unix://tenant:pw@{server.socket}").check_server()
    assert len(warnings) == 2
    assert "INFO is not allowed" in warnings[0]
    assert "an administrator must" in warnings[1]


async def test_an_older_library_is_replaced_and_a_newer_one_kept(
    redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(redis_url)
    server = Server(redis_url)

    def stated(version: int) -> str:
        line = f"-- library version {functions.VERSION}"
        assert line in functions.library()
        return functions.library().replace(line, f"-- library version {version}")

    async def loaded() -> str:
        return str(await server.call("FUNCTION", "LIST", "WITHCODE"))

    try:
        await server.call("FUNCTION", "LOAD", "REPLACE", stated(functions.VERSION - 1))
        await queue.check_server()
        assert f"library version {functions.VERSION}\\n" in await loaded()
        await server.call("FUNCTION", "LOAD", "REPLACE", stated(functions.VERSION + 1))
        assert any("newer than ours" in warning for warning in await queue.check_server())
        assert f"library version {functions.VERSION + 1}\\n" in await loaded()
    finally:
        await server.call("FUNCTION", "FLUSH")
        await server.close()
