"""A call on the kept connection is as safe as one on the ordinary way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import redis
from tests.queueing.conftest import BODY, MODEL, emit, follow, stop, token

from headway.queueing.claims import Fenced
from headway.queueing.errors import QueueUnavailableError
from headway.queueing.events import TokenEvent
from headway.queueing.node import Node

if TYPE_CHECKING:
    from tests.queueing.conftest import OpenQueue


async def test_a_connection_that_the_server_closed_costs_the_caller_nothing(
    redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(redis_url)
    submitted = await queue.submit_body(MODEL, BODY)
    (claim,) = await queue.claim(MODEL, "w", 1)
    with redis.Redis.from_url(redis_url) as raw:
        for at in range(1, 6):
            assert await queue.emit([emit(claim, at)]) == (Fenced.OK,)
            raw.client_kill_filter(_type="normal", skipme=True)
    await queue.finish([stop(claim, 5)])
    events = await follow(queue, submitted.job_id)
    assert [e for e in events if isinstance(e, TokenEvent)] == [token(at) for at in range(1, 6)]


async def test_a_cancelled_call_leaves_no_reply_for_the_next_one(
    redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(redis_url)
    await queue.check_server()
    for number in range(50):
        asking = asyncio.create_task(queue._server.express_call("ECHO", f"first {number}"))
        for _ in range(number % 7):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait((asking,))
        assert await queue._server.express_call("ECHO", f"second {number}") == f"second {number}".encode()


async def test_callers_at_the_same_time_each_get_their_own_reply(
    redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(redis_url)
    await queue.check_server()
    replies = await asyncio.gather(*(queue._server.express_call("ECHO", str(n)) for n in range(20)))
    assert replies == [str(n).encode() for n in range(20)]


async def test_a_refusal_is_told_in_our_words_and_the_connection_stays(
    redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(redis_url)
    await queue.check_server()
    node = await queue._server.topology.node_for(None)
    await node.express_call("ECHO", "a")
    before = node._express._connection
    with pytest.raises(Exception, match="wrong number of arguments"):
        await node.express_call("ECHO")
    assert node._express._connection is before


async def test_a_server_that_is_away_is_told_as_away() -> None:
    node = Node(("127.0.0.1", 1))
    with pytest.raises(QueueUnavailableError):
        await node.express_call("PING")
    await node.close()
