"""A TCP link in front of the queue's server that can be slow, cut, or swallow everything.

What is swallowed is not lost: it is delivered when the link is whole again, as retransmission does, perhaps
long after its sender gave up on it. What is under way when a link is cut is lost.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

_CHUNK: Final = 65536


class TcpLink:
    """Listens on a free port of this machine; each connection is passed on to a server's unix socket."""

    def __init__(self, target: str) -> None:
        self.delay_seconds = 0.0
        self.port = 0
        self._target = target
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self.heal()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self.heal()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def swallow(self, *, requests: bool = True, replies: bool = True) -> None:
        """Hold back what comes from now on."""
        if requests:
            self._up.clear()
        if replies:
            self._down.clear()

    def heal(self) -> None:
        """Deliver what was held back, and everything after it at once."""
        self.delay_seconds = 0.0
        self._up.set()
        self._down.set()

    def cut(self) -> None:
        """Break every connection in the middle of whatever it carries."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        up: asyncio.StreamWriter | None = None
        try:
            down, up = await asyncio.open_unix_connection(self._target)
            self._writers.add(up)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(reader, up, self._up))
                group.create_task(self._carry(down, writer, self._down))
        except* (OSError, EOFError):
            pass
        finally:
            for each in (writer, up):
                if each is not None:
                    self._writers.discard(each)
                    each.close()
                    with suppress(OSError):
                        await each.wait_closed()
            self._tasks.discard(task)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        while chunk := await reader.read(_CHUNK):
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            await gate.wait()
            writer.write(chunk)
            await writer.drain()
        await gate.wait()
        raise EOFError
