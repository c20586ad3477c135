"""The worker's pages answer probes and scrapes, and nothing that a client does breaks them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from headway.services.worker_http import WorkerHttp


@pytest.fixture
async def port() -> AsyncIterator[int]:
    http = WorkerHttp(lambda: b"some 1.0\n", lambda: (False, "hung"), lambda: (True, "ready"), lambda: b"")
    yield await http.start("127.0.0.1", 0)
    await http.close()


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        (b"GET /metrics HTTP/1.1", b"200 OK", b"some 1.0\n"),
        (b"GET /healthz HTTP/1.1", b"503 Service Unavailable", b"hung\n"),
        (b"GET /readyz HTTP/1.0", b"200 OK", b"ready\n"),
        (b"GET /trace HTTP/1.1", b"503 Service Unavailable", b"starting\n"),
        (
            b"GET /else HTTP/1.1",
            b"404 Not Found",
            b"there are /metrics, /healthz and /readyz; a worker also has /trace\n",
        ),
        (b"POST /metrics HTTP/1.1", b"405 Method Not Allowed", b"GET only\n"),
        (b"\x00\xff nonsense", b"405 Method Not Allowed", b"GET only\n"),
    ],
)
async def test_each_page_says_one_thing(port: int, request_line: bytes, status: bytes, body: bytes) -> None:
    answer = await ask(port, request_line + b"\r\nHost: x\r\n\r\n")
    head, _, found = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status)
    assert found == body


async def test_clients_that_go_away_or_flood_do_not_stop_it(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    with contextlib.suppress(ConnectionError):  # hung up on
        await ask(port, b"GET /" + b"x" * 200_000 + b"\r\n\r\n")
    assert b"some 1.0" in await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")
