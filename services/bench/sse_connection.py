"""One HTTP request and its answer on a connection of its own, as light as Python can make it.

httptools (the parser of the gateway's own server) on a bare asyncio protocol: an event costs a fraction of
what it costs through httpx or aiohttp (ops/bench/client_cost.py measures it), and a client on the machine
that it measures must take little of it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httptools

MOST_BODY_BYTES: Final = 32 << 20
"""Of an answer that is no stream."""
SMALL_BUFFER: Final = 4096
"""A slow reader's socket takes no more than this."""

Hear = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is."""

    host: str
    port: int
    netloc: str
    path: str
    """In front of every path: ``/v1`` is not part of it."""
    is_tls: bool

    @classmethod
    def parse(cls, url: str) -> Address:
        """Of ``http(s)://host[:port][/path][/v1]``; raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no http:// or https:// URL")
        is_tls = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        netloc = parts.netloc.rpartition("@")[2]
        return cls(parts.hostname, parts.port or (443 if is_tls else 80), netloc, path, is_tls)


def request_bytes(address: Address, method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """The whole request, ready to be written."""
    lines = [f"{method} {address.path}{path} HTTP/1.1", f"Host: {address.netloc}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class SseConnection(asyncio.Protocol):
    """Sends a request when it is connected; ``hear`` gets each event's data of a 200 as it comes.

    ``ended`` is set when the answer is whole or the connection is lost; ``is_whole`` tells which.
    """

    def __init__(self, request: bytes, hear: Hear | None = None, *, bytes_per_second: float = 0.0) -> None:
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()
        self.is_whole = False
        self.problem = ""
        self._loop = loop
        self._request = request
        self._hear = hear
        self._bytes_per_second = bytes_per_second
        self._rest = b""
        self._is_heard = False
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Read on; a slow reader then rests as long as so many bytes should take it."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.problem = self.problem or f"no HTTP: {error}"
            self.close()
            return
        if self._bytes_per_second and self._transport is not None and not self.ended.done():
            self._transport.pause_reading()
            self._loop.call_later(len(data) / self._bytes_per_second, self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools for each header."""
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Called by httptools: from here on it is known whether a stream comes."""
        self.status = self._parser.get_status_code()
        is_stream = self.headers.get(b"content-type", b"").startswith(b"text/event-stream")
        self._is_heard = self._hear is not None and self.status == 200 and is_stream

    def on_body(self, body: bytes) -> None:
        """Called by httptools: hand on every whole line of data."""
        if not self._is_heard or self._hear is None:
            self.body += body
            if len(self.body) > MOST_BODY_BYTES:
                self.problem = "the answer does not end"
                self.close()
            return
        lines = (self._rest + body).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._hear(line[5:].strip())

    def on_message_complete(self) -> None:
        """Called by httptools at the answer's end."""
        self.is_whole = True
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over, one way or the other."""
        if (
            exc is None
            and self.status
            and not {b"content-length", b"transfer-encoding"} & self.headers.keys()
        ):
            self.is_whole = True  # HTTP/1.0's way to end a body
        if not self.is_whole and not self.problem:
            self.problem = str(exc) if exc else "the connection was closed in the middle of the answer"
        self._finish()

    def close(self) -> None:
        """Leave, and let the server see it."""
        if self._transport is not None:
            self._transport.abort() if self._bytes_per_second else self._transport.close()
        self._finish()

    def _finish(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class Dialler:
    """Opens connections to one server; its name is looked up once."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._tls = ssl.create_default_context() if address.is_tls else None
        self._family = socket.AF_INET
        self._place = address.host

    async def prepare(self) -> None:
        """Look the name up. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._address.host, self._address.port, type=socket.SOCK_STREAM)
        self._family, self._place = found[0][0], str(found[0][4][0])

    async def connect(self, connection: SseConnection, *, is_slow: bool = False) -> None:
        """Connect it. Raises OSError."""
        loop = asyncio.get_running_loop()
        tls_name = self._address.host if self._tls is not None else None
        if is_slow:
            link = socket.socket(self._family, socket.SOCK_STREAM)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
            link.setblocking(False)
            await loop.sock_connect(link, (self._place, self._address.port))
            await loop.create_connection(
                lambda: connection, sock=link, ssl=self._tls, server_hostname=tls_name
            )
            return
        await loop.create_connection(
            lambda: connection, self._place, self._address.port, ssl=self._tls, server_hostname=tls_name
        )

    async def exchange(self, request: bytes, seconds: float) -> SseConnection:
        """One request and its whole answer. Raises OSError, TimeoutError."""
        connection = SseConnection(request)
        async with asyncio.timeout(seconds):
            await self.connect(connection)
            try:
                await connection.ended
            finally:
                connection.close()
        if not connection.is_whole:
            raise OSError(connection.problem)
        return connection
