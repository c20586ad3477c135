"""A link between client and server that loses what a test wants it to lose."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path


class LossyLink:
    """A unix socket in front of a server's; bytes pass through unless told otherwise."""

    def __init__(self, folder: Path, target: str) -> None:
        self.url = f"unix://{folder / 'link.sock'}"
        self.losses = 0
        self._path = folder / "link.sock"
        self._target = target
        self._lose: tuple[bytes, int] = (b"", 0)
        self._silent = False
        self._drop_messages = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def lose_reply_to(self, command: bytes, times: int = 1) -> None:
        """Break the connection after the server answered a command that contains these bytes."""
        self._lose = (command, times)

    def go_silent(self) -> None:
        """Deliver commands, and no more replies."""
        self._silent = True

    def drop_messages(self) -> None:
        """Deliver no published messages."""
        self._drop_messages = True

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, str(self._path))

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        up_reader, up_writer = await asyncio.open_unix_connection(self._target)
        doomed = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests(reader, up_writer, doomed))
                group.create_task(self._replies(up_reader, writer, doomed))
        except* (ConnectionError, EOFError):
            pass
        except* asyncio.CancelledError:
            pass
        finally:
            for each in (writer, up_writer):
                each.close()
                with suppress(ConnectionError):
                    await each.wait_closed()
            self._tasks.discard(task)

    async def _requests(
        self, reader: asyncio.StreamReader, up: asyncio.StreamWriter, doomed: asyncio.Event
    ) -> None:
        while chunk := await reader.read(65536):
            command, times = self._lose
            if times > 0 and command in chunk:
                self._lose = (command, times - 1)
                self.losses += 1
                doomed.set()
            up.write(chunk)
            await up.drain()
        raise EOFError

    async def _replies(
        self, up: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: asyncio.Event
    ) -> None:
        while chunk := await up.read(65536):
            if doomed.is_set():
                raise ConnectionResetError
            if self._silent or (self._drop_messages and b"pmessage" in chunk):
                continue
            writer.write(chunk)
            await writer.drain()
        raise EOFError
