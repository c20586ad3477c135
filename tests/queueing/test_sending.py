"""How our connections send: the bytes that redis-py would send, and no cancel is swallowed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from redis.asyncio.connection import Connection

from headway.queueing.node import Node
from headway.queueing.sending import sending_well

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RedisServer


@pytest.mark.parametrize(
    "words",
    [
        ("PING",),
        (
            "FCALL",
            "headway_emit",
            1,
            "{tiny:0}",
            "key",
            "token",
            "5-0",
            "0",
            " wörd \U0001f680",
            "1,2",
            "",
            "",
        ),
        ("SET", b"\x00\xff\r\n", -7, 0.25, 1e300, 10**15),
        ("CLIENT SETNAME", "headway"),
        ("XADD", "o", "1-0", "t", "x" * 100_000, "k", ""),
    ],
)
def test_both_pack_alike(words: tuple[str | bytes | int | float, ...]) -> None:
    pytest.importorskip("hiredis", reason="the bare client packs in Python")
    in_c = sending_well(Connection)
    assert in_c is not Connection
    assert b"".join(in_c().pack_command(*words)) == b"".join(Connection().pack_command(*words))


def test_half_a_surrogate_pair_is_refused_by_both() -> None:
    for kind in (sending_well(Connection), Connection):
        with pytest.raises(UnicodeEncodeError):
            kind().pack_command("SET", "k", "\ud800")


async def test_a_cancel_ends_its_caller_wherever_the_command_is(
    shared_redis: Callable[[str], RedisServer],
) -> None:
    """Python 3.11's ``wait_for``, in which redis-py sends, swallows a cancel now and then."""
    server = shared_redis("valkey9")
    swallowed: list[int] = []
    for turns in range(40):
        node = Node(str(server.socket))
        asking = asyncio.ensure_future(_ask_twice(node))
        for _ in range(turns):
            await asyncio.sleep(0)
        if asking.cancel():
            await asyncio.wait({asking})
            swallowed += [] if asking.cancelled() else [turns]
        await node.close()
    assert swallowed == []


async def _ask_twice(node: Node) -> None:
    await node.call("PING")
    await node.call("PING")
    await asyncio.sleep(60)
