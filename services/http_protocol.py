"""The HTTP parser of the gateway's server, with the two bounds that uvicorn leaves to a proxy in front.

Without them one connection may fill the memory with headers that never end, and any number of connections may
stay open for ever with a request that never comes. Bodies are bounded where they are read (``json_body``).
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 64 << 10
"""Request line and headers, give or take one read of the socket."""
REQUEST_SECONDS: Final = 30.0
"""How long a request's head may take, and the rest of a body whose request was answered without it."""

_MESSAGE: Final = (
    b'{"error":{"message":"the request\'s line and headers are larger than %d bytes",'
    b'"type":"invalid_request_error","param":null,"code":"headers_too_large"}}'
)
_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s"
)


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection: a head over its bound gets a 431, one over REQUEST_SECONDS is cut off."""

    request_seconds: float = REQUEST_SECONDS
    max_head_bytes: int = MAX_HEAD_BYTES
    _is_in_head: bool = True
    _is_at_start: bool = True
    _has_been_asked: bool = False
    _head_bytes: int = 0
    """Of a head that is not whole yet, by reads of the socket."""
    _field_bytes: int = 0
    """Of this head's address and headers, as parsed: one that came with a single read has no other count."""
    _is_refused: bool = False
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own
        """A client may not just connect and say nothing."""
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, then see what the client still owes."""
        self._is_at_start = False
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_in_head and not self._is_at_start:
            self._head_bytes += len(data)
            if self._head_bytes > self.max_head_bytes:
                self._refuse()
                return
        if self._owes():
            self._arm()
        else:
            self._disarm()

    def on_url(self, url: bytes) -> None:
        """Count the address."""
        self._field_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count one header."""
        self._field_bytes += len(name) + len(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        fields, self._field_bytes = self._field_bytes, 0
        if fields > self.max_head_bytes or self._is_refused:
            self._refuse()
            return
        self._is_in_head = False
        self._has_been_asked = True
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on what belongs to a request that is served."""
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole; what follows is the next one's head."""
        if self._is_refused:
            return
        self._is_in_head = self._is_at_start = True
        super().on_message_complete()

    def _owes(self) -> bool:
        """Whether half a head is here, or half a body that nobody waits for any more."""
        if self._is_in_head:
            return not self._is_at_start
        return self.cycle.response_complete

    def _arm(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.request_seconds, self.transport.abort)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        if self._has_been_asked and not self.cycle.response_complete:
            self.transport.abort()  # in the middle of an earlier answer
            return
        message = _MESSAGE % self.max_head_bytes
        self.transport.write(_TOO_LARGE % (len(message), message))
        self.transport.close()


def bounded_to(max_head_bytes: int) -> type[BoundedHttpProtocol]:
    """The protocol with another bound of a request's head; uvicorn takes a class."""
    return type("BoundedHttpProtocol", (BoundedHttpProtocol,), {"max_head_bytes": max_head_bytes})
