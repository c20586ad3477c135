"""Looks at token streams for any number of readers, in as few commands as there are lanes.

A reader has a watch: its place in a stream. A hint that names the job makes the watches of that job look, and
all that are due look together: those of one lane by one XREAD, since a command for each stream costs the
server and redis-py more than the entries do. Hints may be lost, so whoever
has not looked for ``poll_seconds`` does. A watch whose reader took its events waits for it to come back, and
remembers whether there was a hint meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any, Final, cast

from headway.queueing.errors import NotNowError, QueueingError
from headway.queueing.events import Cursor
from headway.queueing.ids import JobId
from headway.queueing.keys import JobKeys
from headway.queueing.server import Argument, Reply, Server
from headway.queueing.server_errors import WrongTypeError
from headway.queueing.settings import READ_LIMIT

_LOOKS_TOGETHER: Final = 128
"""Watches that one round trip serves: the server does nothing else meanwhile."""

_HEARD_POLLS: Final = 4
"""For as many polls' time a hint shows that others would come too."""

_NOT_TOGETHER: Final = (WrongTypeError, NotNowError)
"""One of several streams is none, or is on its way to another node: each is asked for by itself."""

Entries = list[Any]
"""Of one stream, as XRANGE has them."""


@dataclass(slots=True, eq=False)
class Watch:
    """One reader's place in one stream."""

    job: JobId
    key: str
    """Of the stream."""
    after: Cursor
    entries: asyncio.Future[Entries] | None = None
    """What its reader waits for; None: the reader is away."""
    is_up_to_date: bool = False
    """It has been at the stream's end, so what came since is little."""
    is_due: bool = False
    """It looks next, or now."""
    was_rung: bool = False
    """A hint came, and it has not looked since."""
    looked: float = 0.0
    """When it did last, on the loop's clock."""


@dataclass(slots=True)
class _Batch:
    commands: list[tuple[Argument, ...]] = field(default_factory=list[tuple[Argument, ...]])
    watches: list[list[Watch]] = field(default_factory=list[list[Watch]])
    """For each command those whose streams it asks for."""


class Watches:
    """All watches of one process. Used by one event loop."""

    def __init__(self, server: Server, poll_seconds: float) -> None:
        self._server = server
        self._poll_seconds = poll_seconds
        self._by_job: dict[str, list[Watch]] = {}
        self._due: list[Watch] = []
        self._looking: asyncio.Task[None] | None = None
        self._rung = 0.0
        """When the last hint came, on the loop's clock."""

    def __len__(self) -> int:
        return sum(map(len, self._by_job.values()))

    def add(self, job: JobId, after: Cursor) -> Watch:
        """A watch that hears hints from now on; to be given to ``drop``."""
        watch = Watch(job, JobKeys(job).stream, after, was_rung=True)
        self._by_job.setdefault(str(job), []).append(watch)
        return watch

    def drop(self, watch: Watch) -> None:
        """Forget a watch; nothing where that has happened before."""
        name = str(watch.job)
        watches = self._by_job.get(name, [])
        if watch in watches:
            watches.remove(watch)
            if not watches:
                del self._by_job[name]

    async def look(self, watch: Watch) -> Entries:
        """What stands behind its cursor now, perhaps nothing. Raises QueueingError."""
        entries: asyncio.Future[Entries] = asyncio.get_running_loop().create_future()
        watch.entries = entries
        self._ask(watch)
        try:
            return await entries
        finally:
            watch.entries = None

    async def wait(self, watch: Watch, until: float) -> Entries:
        """What a look at the next hint finds, perhaps nothing: also when it is ``until`` on the loop's clock.

        Raises QueueingError.
        """
        loop = asyncio.get_running_loop()
        entries: asyncio.Future[Entries] = loop.create_future()
        watch.entries = entries
        if watch.was_rung:
            self._ask(watch)
        timer = loop.call_at(until, _give_up, entries)
        try:
            return await entries
        finally:
            timer.cancel()
            watch.entries = None

    def ring(self, job: str) -> None:
        """There may be new entries of a job."""
        self._rung = asyncio.get_running_loop().time()
        for watch in self._by_job.get(job, ()):
            watch.was_rung = True
            if watch.entries is not None:
                self._ask(watch)

    def ring_all(self) -> None:
        """There may be new entries of every job."""
        for job in tuple(self._by_job):
            self.ring(job)

    async def poll(self) -> None:
        """Have everybody look who has not for long; ends only by being cancelled.

        While hints come they are hardly ever lost, so then few look at a time: the looks of thousands of
        readers cost the process more than all their tokens do.
        """
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._poll_seconds / 2)
            now = loop.time()
            latest = now - self._poll_seconds / 2
            waiting = [each for watches in self._by_job.values() for each in watches]
            late = [watch for watch in waiting if watch.entries is not None and watch.looked < latest]
            if len(late) > _LOOKS_TOGETHER and self._rung > now - _HEARD_POLLS * self._poll_seconds:
                late = nsmallest(_LOOKS_TOGETHER, late, key=lambda watch: watch.looked)
            for watch in late:
                self._ask(watch)

    # -- together -------------------------------------------------------------------------------------

    def _ask(self, watch: Watch) -> None:
        if watch.is_due:
            return
        watch.is_due = True
        self._due.append(watch)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_while_due(), name="headway-look")

    async def _look_while_due(self) -> None:
        """Never cancelled: a call has a time limit of its own."""
        try:
            while self._due:
                watches = self._due[:_LOOKS_TOGETHER]
                del self._due[:_LOOKS_TOGETHER]
                await self._look([watch for watch in watches if _is_wanted(watch)])
        finally:
            self._looking = None

    async def _look(self, watches: Sequence[Watch]) -> None:
        now = asyncio.get_running_loop().time()
        for watch in watches:
            watch.was_rung, watch.looked = False, now
        batch = _batch(watches)
        for asked, reply in zip(batch.watches, await self._replies(batch.commands), strict=True):
            if isinstance(reply, _NOT_TOGETHER) and len(asked) > 1:
                commands = [_range(watch) for watch in asked]
                for watch, own in zip(asked, await self._replies(commands), strict=True):
                    self._answer(watch, own)
            elif len(asked) > 1 and not isinstance(reply, Exception):
                streams = dict(cast("list[tuple[bytes, Entries]]", reply or ()))
                for watch in asked:
                    self._answer(watch, streams.get(watch.key.encode(), []))
            else:
                for watch in asked:
                    self._answer(watch, reply)

    async def _replies(self, commands: list[tuple[Argument, ...]]) -> list[Reply]:
        if len(commands) == 1:  # nearly always
            try:
                return [await self._server.express_call(*commands[0])]
            except NotNowError:
                pass  # a slot on its way to another node: a pipeline follows it
            except QueueingError as error:
                return [error]
        try:
            return await self._server.pipeline(commands)
        except QueueingError as error:
            return [error] * len(commands)

    def _answer(self, watch: Watch, reply: Reply) -> None:
        watch.is_due = False
        entries = watch.entries
        if entries is None or entries.done():
            return  # its reader went away
        if isinstance(reply, Exception) and not isinstance(reply, WrongTypeError):
            entries.set_exception(reply)
        elif isinstance(reply, list) and reply:
            watch.is_up_to_date = len(reply) < READ_LIMIT
            entries.set_result(reply)
        else:  # nothing, or no stream: the job's end, or its next owner, puts one there
            watch.is_up_to_date = True
            entries.set_result([])


def _is_wanted(watch: Watch) -> bool:
    if watch.entries is not None and not watch.entries.done():
        return True
    watch.is_due = False
    return False


def _batch(watches: Iterable[Watch]) -> _Batch:
    """One XREAD for the watches of a lane that are up to date; the others may have a lot to read."""
    batch, together = _Batch(), dict[str, dict[str, Watch]]()
    for watch in watches:
        lane = together.setdefault(watch.job.lane, {})
        if watch.is_up_to_date and watch.key not in lane:  # XREAD does not tell two readers of a stream apart
            lane[watch.key] = watch
        else:
            batch.commands.append(_range(watch))
            batch.watches.append([watch])
    for lane in together.values():
        if len(lane) == 1:
            batch.commands.append(_range(*lane.values()))
            batch.watches.append([*lane.values()])
        elif lane:
            cursors = [str(watch.after) for watch in lane.values()]
            batch.commands.append(("XREAD", "COUNT", READ_LIMIT, "STREAMS", *lane, *cursors))
            batch.watches.append([*lane.values()])
    return batch


def _range(watch: Watch) -> tuple[Argument, ...]:
    return "XRANGE", watch.key, f"({watch.after}", "+", "COUNT", READ_LIMIT


def _give_up(entries: asyncio.Future[Entries]) -> None:
    if not entries.done():
        entries.set_result([])
