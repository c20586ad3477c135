"""What wakes a worker: the stream of its cancelled jobs, and the bell of a lane that stops being empty."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from headway.queueing.codec import pairs
from headway.queueing.errors import QueueUnavailableError
from headway.queueing.keys import LaneKeys
from headway.queueing.messages import Priority, down_to
from headway.queueing.protocol import Wakeup
from headway.queueing.server import BLOCK_MS, Argument, RefusedError, Reply, Server

_START: Final = b"0-0"


class Ear:
    """Reads both streams by one blocking call at a time.

    A caller that gives up leaves the call to whoever waits next. Cutting it off would cost its connection,
    and a cancel that comes while one is being made may be lost inside the client library, for as long as
    the call then blocks: a worker with short jobs stood still for 2 s that way.
    """

    def __init__(self, server: Server, keys: LaneKeys, worker_id: str) -> None:
        self._server = server
        self._keys = keys
        self._worker_id = worker_id
        self._control = keys.control(worker_id)
        self._heard = {self._control: _START, keys.wake: _START}
        self._call: asyncio.Task[Reply] | None = None

    async def wait(self, *, for_work: Priority | None, timeout_seconds: float) -> Wakeup:
        """See ``Queue.wait``."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_seconds
        # The bell rings when the lane stops being empty: see that it is, and wait for rings after that look.
        if for_work is not None and await self._has_work(for_work):
            return Wakeup(may_have_work=True)
        while (left := until - loop.time()) > 0:
            try:
                wakeup = self._take_in(await self._next(left))
            except RefusedError:  # one of them is no stream
                await self._server.fcall("headway_mend", self._keys.tag, self._worker_id)
                return Wakeup(may_have_work=for_work is not None)
            has_rung = for_work is not None and wakeup.may_have_work
            if wakeup.cancelled or has_rung:
                return Wakeup(has_rung, wakeup.cancelled)
        return Wakeup(may_have_work=False)

    async def close(self) -> None:
        """Leave the call to its own end."""
        if self._call is not None:
            self._call.cancel()
            await asyncio.wait((self._call,), timeout=BLOCK_MS / 1000)

    async def _next(self, seconds: float) -> Reply:
        """What the call brought; None when nothing came in time."""
        if self._call is None:
            positions: list[Argument] = [*self._heard, *self._heard.values()]
            reading = self._server.block("XREAD", "COUNT", 64, "BLOCK", BLOCK_MS, "STREAMS", *positions)
            self._call = asyncio.create_task(reading, name="headway-ear")
            self._call.add_done_callback(_look_at_error)
        await asyncio.wait((self._call,), timeout=seconds)
        if not self._call.done():
            return None
        call, self._call = self._call, None
        if call.cancelled():
            raise QueueUnavailableError("this queue was closed")
        return call.result()

    async def _has_work(self, least: Priority) -> bool:
        fields = [f"{what}:{band}" for what in ("jobs", "returned") for band in down_to(least)]
        rings, counts = await self._server.pipeline(
            [("XREVRANGE", self._keys.wake, "+", "-", "COUNT", 1), ("HMGET", self._keys.books, *fields)]
        )
        if isinstance(rings, list):
            self._heard[self._keys.wake] = cast("Any", rings)[0][0] if rings else _START
        # What is no hash is put right by the next claim.
        return not isinstance(counts, list) or any(count not in (None, b"0") for count in counts)

    def _take_in(self, reply: Reply) -> Wakeup:
        """What is new in a reply: the call may have begun before the last look."""
        cancelled: list[str] = []
        has_rung = False
        for raw_name, entries in cast("list[Any]", reply or []):
            name = raw_name.decode()
            new = [entry for entry in entries if _is_after(entry[0], self._heard[name])]
            if new:
                self._heard[name] = new[-1][0]
            if name == self._control:
                keys = (pairs(flat).get("job") for _, flat in new)
                cancelled += [f"{self._keys.lane}:{key.decode()}" for key in keys if key]
            else:
                has_rung = bool(new)
        return Wakeup(has_rung, tuple(cancelled))


def _is_after(entry_id: bytes, other: bytes) -> bool:
    return tuple(map(int, entry_id.split(b"-"))) > tuple(map(int, other.split(b"-")))


def _look_at_error(call: asyncio.Task[Reply]) -> None:
    if not call.cancelled():
        call.exception()  # its caller may have gone, and then nobody else asks for it
