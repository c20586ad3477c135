"""Read-only pages of a process: /metrics, /healthz and /readyz for whoever restarts it, a worker's /trace.

A few lines on asyncio instead of a web framework: the worker's image needs none, and an answer also proves
that the I/O loop turns.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST

REQUEST_SECONDS: Final = 5.0
_PLAIN: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """One answer."""

    status: str
    body: bytes
    content_type: str = _PLAIN

    @classmethod
    def when(cls, is_well: bool, body: str) -> Page:
        """200 or 503, as probes expect."""
        return cls("200 OK" if is_well else "503 Service Unavailable", body.encode() + b"\n")


class WorkerHttp:
    """Serves the pages until closed. ``health`` and ``readiness`` say whether all is well, and a word why.

    ``trace``: a worker's; None: there is no such page.
    """

    def __init__(
        self,
        metrics: Callable[[], bytes],
        health: Callable[[], tuple[bool, str]],
        readiness: Callable[[], tuple[bool, str]],
        trace: Callable[[], bytes] | None = None,
    ) -> None:
        self._metrics = metrics
        self._health = health
        self._readiness = readiness
        self._trace = trace
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; port 0 takes a free one. Returns the port; raises OSError when it is taken."""
        self._server = await asyncio.start_server(self._serve, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A probe that goes away, dawdles or sends rubbish is nobody's problem but its own.
        with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(REQUEST_SECONDS):
                page = await self._page(await reader.readline())
                while await reader.readline() not in {b"\r\n", b"\n", b""}:
                    pass
                head = (
                    f"HTTP/1.1 {page.status}\r\nContent-Type: {page.content_type}\r\n"
                    f"Content-Length: {len(page.body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + page.body)
                await writer.drain()
        writer.close()

    async def _page(self, request_line: bytes) -> Page:
        match request_line.split():
            case [b"GET", b"/metrics", _]:
                return Page("200 OK", self._metrics(), CONTENT_TYPE_LATEST)
            case [b"GET", b"/healthz", _]:
                return Page.when(*self._health())
            case [b"GET", b"/readyz", _]:
                return Page.when(*self._readiness())
            case [b"GET", b"/trace", _] if self._trace is not None:
                # Thousands of events: in a thread, so that no token waits for them.
                return _trace_page(await asyncio.to_thread(self._trace))
            case [b"GET", _, _]:
                return Page(
                    "404 Not Found", b"there are /metrics, /healthz and /readyz; a worker also has /trace\n"
                )
            case _:
                return Page("405 Method Not Allowed", b"GET only\n")


def _trace_page(trace: bytes) -> Page:
    return Page("200 OK", trace, "application/json") if trace else Page.when(False, "starting")
