"""The gateway's server bounds what a connection may hold and owe, and disturbs nobody who behaves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import uvicorn

from headway.services.http_protocol import MAX_HEAD_BYTES, BoundedHttpProtocol

REQUEST_SECONDS = 0.5
REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"


class QuickProtocol(BoundedHttpProtocol):
    request_seconds = REQUEST_SECONDS


class QuietServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Any:
        yield


async def app(
    scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    """Answers with the body's length; at /early before it has read it, at /slow much later."""
    size, more = 0, scope["path"] != "/early"
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    if scope["path"] == "/slow":
        await asyncio.sleep(3 * REQUEST_SECONDS)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
    await send({"type": "http.response.body", "body": b"%8d" % size})


@asynccontextmanager
async def connection(
    protocol: type[BoundedHttpProtocol] = QuickProtocol,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = QuietServer(uvicorn.Config(app, http=protocol, ws="none", lifespan="off", log_config=None))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            yield reader, writer
        finally:
            writer.close()
            server.should_exit = True
            await serving


async def all_of(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(10):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


@pytest.mark.parametrize(
    "start", [b"GET /", b"GET / HTTP/1.1\r\nX-A: ", REQUEST + b"GET / HTTP/1.1\r\nX-A: "]
)
async def test_a_head_without_end_is_refused_before_it_fills_the_memory(start: bytes) -> None:
    async with connection() as (_, writer):
        writer.write(start)
        sent = 0
        with pytest.raises(ConnectionError):  # noqa: PT012 # which of the writes fails depends on timing
            while sent < 64 << 20:
                writer.write(b"a" * 65_536)
                await writer.drain()
                sent += 65_536
        assert sent < 64 << 20


async def test_whoever_sends_a_little_too_much_is_told() -> None:
    async with connection() as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nX-A: ")
        await writer.drain()
        writer.write(b"a" * (MAX_HEAD_BYTES + 1))
        answer = await all_of(reader)
        assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""  # a reset may overtake the answer


@pytest.mark.parametrize("rest", [b"", b"Content-Length: 5\r\n\r\nhello", b"\r\n" + REQUEST])
async def test_a_head_that_comes_at_once_is_measured_too(rest: bytes) -> None:
    bound = 1000

    class Narrow(QuickProtocol):
        max_head_bytes = bound

    async with connection(Narrow) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * bound + b"\r\n" + (rest or b"\r\n"))
        answer = await all_of(reader)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"%d bytes" % bound in answer


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n", REQUEST + b"GET /"])
async def test_a_head_that_never_ends_is_cut_off_in_time(said: bytes) -> None:
    async with connection() as (reader, writer):
        writer.write(said)
        trickle = asyncio.create_task(drip(writer if said else None))
        answer = await all_of(reader)
        trickle.cancel()
        assert (b"200 OK" in answer) == said.startswith(REQUEST)


async def test_a_body_that_nobody_waits_for_any_more_is_cut_off_in_time() -> None:
    async with connection() as (reader, writer):
        writer.write(b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\nhel")
        trickle = asyncio.create_task(drip(writer))
        assert b"200 OK" in await all_of(reader)
        trickle.cancel()


async def test_slow_answers_and_rests_between_requests_are_not_cut_off() -> None:
    async with connection() as (reader, writer):
        for path in (b"/slow", b"/", b"/"):
            writer.write(REQUEST.replace(b"POST /", b"POST " + path))
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
                assert (head[:15], await reader.readexactly(8)) == (b"HTTP/1.1 200 OK", b"       5")
            await asyncio.sleep(1.5 * REQUEST_SECONDS)


async def test_large_bodies_and_many_requests_in_one_write_are_no_heads() -> None:
    body = b"x" * (10 * MAX_HEAD_BYTES)
    large = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    async with connection() as (reader, writer):
        writer.write((large + REQUEST) * 3)
        async with asyncio.timeout(10):
            for size in [len(body), 5] * 3:
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
                assert int(await reader.readexactly(8)) == size


async def drip(writer: asyncio.StreamWriter | None) -> None:
    """A byte now and then, for ever."""
    while writer is not None:
        writer.write(b"a")
        await asyncio.sleep(0.05)
