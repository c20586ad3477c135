"""A server that answers as badly as it is told to: what a benchmark may meet."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Peer:
    """``pieces`` of text, ``gap`` seconds apart, then the end, unless it is told otherwise."""

    pieces: tuple[str, ...] = ("a", "b", "c")
    gap: float = 0.0
    models: tuple[str, ...] = ("slow",)
    key: str | None = None
    has_usage: bool = True
    breaks_after: int | None = None
    """Events after which it hangs up without an end."""
    refuses: int | None = None
    """The status that it answers everything but its first ``spares`` requests with."""
    spares: int = 0
    serves_per_second: float | None = None
    """What it answers; whoever comes on top of that, and of its spares at once, is refused. None: all."""
    known: frozenset[str] | None = None
    """Fields that it takes; None: all."""
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    left: int = 0
    """Clients that went away before the end."""
    _room: float = 0.0
    _filled_at: float = 0.0

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(
                (line for line in head.split("\r\n") if line.lower().startswith("content-length")), ":0"
            )
            body = await reader.readexactly(int(length.partition(":")[2]))
            await self._reply(head, json.loads(body or b"{}"), writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left += 1
        finally:
            writer.close()

    async def _reply(self, head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        path = head.split(" ")[1]
        if self.key is not None and f"bearer {self.key}" not in head.lower():
            _whole(writer, 401, {"error": {"code": "invalid_api_key", "message": "no such key"}})
        elif path == "/v1/models":
            _whole(writer, 200, {"data": [{"id": name} for name in self.models]})
        elif path != "/v1/chat/completions":
            _whole(writer, 404, {"error": "no such page"})
        else:
            self.asked.append(body)
            unknown = set() if self.known is None else body.keys() - self.known
            if unknown:
                _whole(writer, 400, {"error": {"code": "unknown", "message": f"unknown: {min(unknown)}"}})
            elif self._is_refused():
                _whole(writer, self.refuses or 503, {"error": {"code": "too_many", "message": "come again"}})
            else:
                await self._stream(body, writer)

    def _is_refused(self) -> bool:
        if self.serves_per_second is None:
            return self.refuses is not None and len(self.asked) > self.spares
        now = time.monotonic()
        self._room = min(self.spares, self._room + (now - self._filled_at) * self.serves_per_second)
        self._filled_at = now
        if self._room < 1.0:
            return True
        self._room -= 1.0
        return False

    async def _stream(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        words = body["messages"][0]["content"].split()
        pieces = self.pieces[: body["max_tokens"]]
        for place, piece in enumerate(pieces):
            if place == self.breaks_after:
                return
            _event(writer, {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
            await writer.drain()
            await asyncio.sleep(self.gap)
        _event(writer, {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        if self.has_usage:
            usage = {"prompt_tokens": len(words) + 9, "completion_tokens": len(pieces)}
            _event(writer, {"choices": [], "usage": usage})
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()


def _event(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    writer.write(b"data: " + json.dumps(event).encode() + b"\n\n")


def _whole(writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
    text = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    writer.write(head.encode() + text)
