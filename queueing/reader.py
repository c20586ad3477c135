"""Reading token streams: any number of waiting readers share one subscriber and one pipeline.

A reader asks for the entries behind its cursor; when there are none it sleeps until a hint names its job,
and asks again after ``poll_seconds`` in any case, since hints may be lost. One that comes straight back for
what follows sleeps first: had there been more, a hint would have said so. No reader holds a connection, and a
slow one holds nothing at all. While readers of a lane wait, its expired leases and passed deadlines are
looked for, so that nobody hangs on a dead worker.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from headway.queueing.bells import Bells
from headway.queueing.codec import decode_events, decode_result
from headway.queueing.errors import QueueingError, UnknownJobError
from headway.queueing.events import START, Cursor, EndEvent, StreamEvent
from headway.queueing.ids import JobId
from headway.queueing.keys import HINT_PATTERN, JobKeys
from headway.queueing.results import events_of
from headway.queueing.server import Argument, Reply, Server
from headway.queueing.server_errors import WrongTypeError
from headway.queueing.settings import READ_LIMIT, QueueSettings

_FETCHES_PER_PIPELINE: Final = 128
_RESUBSCRIBE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Standing:
    """A reader between two reads of a stream; its hint has listened since before the first one looked."""

    job_id: str
    hint: asyncio.Future[None]
    since: float


class StreamReader:
    """``Queue.read`` over a server; ``reap`` takes a lane's name and ends what nobody will end."""

    def __init__(
        self, server: Server, settings: QueueSettings, reap: Callable[[str], Awaitable[object]]
    ) -> None:
        self._server = server
        self._settings = settings
        self._reap = reap
        self._bells = Bells()
        self._lanes: Counter[str] = Counter()
        self._standing: dict[tuple[JobId, Cursor], _Standing] = {}
        self._pending: list[tuple[tuple[Argument, ...], asyncio.Future[Reply]]] = []
        self._fetching: asyncio.Task[None] | None = None
        self._background: list[asyncio.Task[None]] = []

    async def read(self, job: JobId, after: Cursor, wait_seconds: float) -> tuple[StreamEvent, ...]:
        """See ``Queue.read``."""
        until = asyncio.get_running_loop().time() + wait_seconds
        standing = self._standing.pop((job, after), None)
        if wait_seconds <= 0:
            return await self._read(job, after, until)
        self._start()
        self._lanes[job.lane] += 1
        try:
            if standing is not None:
                await self._sleep(standing.hint, until)
            return await self._read(job, after, until)
        finally:
            self._lanes[job.lane] -= 1

    async def close(self) -> None:
        """Stop listening, and wake the readers that still wait: the closed server refuses their next call."""
        running = {task for task in self._background if not task.done()}
        while running:  # Python 3.11's wait_for, inside the client library, can swallow a cancel: ask again
            for task in running:
                task.cancel()
            _, running = await asyncio.wait(running, timeout=0.2)
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background.clear()
        self._bells.ring_all()

    async def _read(self, job: JobId, after: Cursor, until: float) -> tuple[StreamEvent, ...]:
        loop = asyncio.get_running_loop()
        may_have_ended = True  # looked for once: its end comes with a hint
        while True:
            hint, is_kept = self._bells.listen(str(job)), False
            try:
                if events := await self._fetch(job, after):
                    is_kept = self._stand(job, events, hint, until)
                    return events
                if may_have_ended and await self._has_ended(job):
                    return await self._read_ended(job, after)
                may_have_ended = False
                if loop.time() >= until:
                    return ()
                await self._sleep(hint, until)
            finally:
                if not is_kept:
                    self._bells.leave(str(job), hint)

    async def _sleep(self, hint: asyncio.Future[None], until: float) -> None:
        left = until - asyncio.get_running_loop().time()
        await asyncio.wait((hint,), timeout=max(0.0, min(left, self._settings.poll_seconds)))

    def _stand(
        self, job: JobId, events: Sequence[StreamEvent], hint: asyncio.Future[None], until: float
    ) -> bool:
        """Whether these are all events so far and their reader is expected back: its hint waits for it."""
        now, last = asyncio.get_running_loop().time(), events[-1]
        if until <= now or len(events) >= READ_LIMIT or isinstance(last, EndEvent):
            return False
        self._leave(self._standing.pop((job, last.cursor), None))
        self._standing[job, last.cursor] = _Standing(str(job), hint, now)
        return True

    def _leave(self, standing: _Standing | None) -> None:
        if standing is not None:
            self._bells.leave(standing.job_id, standing.hint)

    async def _has_ended(self, job: JobId) -> bool:
        try:
            state = await self._server.call("HGET", JobKeys(job).record, "state")
        except WrongTypeError:
            state = None  # somebody wrote over the record
        if state is None:
            raise UnknownJobError(f"no job {job}, or its retention time has passed")
        return state == b"finished"

    async def _read_ended(self, job: JobId, after: Cursor) -> tuple[StreamEvent, ...]:
        events = await self._fetch(job, after)  # it may have ended after the first look
        if events:
            return events
        keys = JobKeys(job)
        last, kept = await self._server.pipeline(
            [("XREVRANGE", keys.stream, "+", "-", "COUNT", 1), ("GET", keys.result)]
        )
        if isinstance(last, list) and last:
            return _ends_before(decode_events(last), after)
        result = decode_result(str(job), kept) if isinstance(kept, bytes) else None
        if after == START and result is not None:
            return events_of(result)
        raise UnknownJobError(
            f"the token stream of {job} is no longer kept: fetch its result, or read from 0"
        )

    # -- one pipeline for all readers -----------------------------------------------------------------

    async def _fetch(self, job: JobId, after: Cursor) -> tuple[StreamEvent, ...]:
        command = ("XRANGE", JobKeys(job).stream, f"({after}", "+", "COUNT", READ_LIMIT)
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pending.append((command, reply))
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch_pending(), name="headway-fetch")
        return decode_events(await reply)

    async def _fetch_pending(self) -> None:
        try:
            while self._pending:
                batch = self._pending[:_FETCHES_PER_PIPELINE]
                del self._pending[:_FETCHES_PER_PIPELINE]
                await self._fetch_batch(batch)
        finally:
            self._fetching = None

    async def _fetch_batch(self, batch: list[tuple[tuple[Argument, ...], asyncio.Future[Reply]]]) -> None:
        replies: list[Reply]
        try:  # this task is never cancelled: a call has a time limit of its own
            replies = await self._server.pipeline(command for command, _ in batch)
        except QueueingError as error:
            replies = [error] * len(batch)
        for (_, waiting), reply in zip(batch, replies, strict=True):
            if waiting.done():
                continue  # its reader went away
            if isinstance(reply, WrongTypeError):
                waiting.set_result([])  # no stream: the job's end, or its next owner, puts one there
            elif isinstance(reply, Exception):
                waiting.set_exception(reply)
            else:
                waiting.set_result(reply)

    # -- hints, and what a lane's silence may mean ----------------------------------------------------

    def _start(self) -> None:
        if not self._background:
            self._background = [
                asyncio.create_task(self._listen(), name="headway-hints"),
                asyncio.create_task(self._watch(), name="headway-watch"),
            ]

    async def _listen(self) -> None:
        while not self._server.is_closed:  # a cancel alone may be lost inside the client library
            try:
                async with aclosing(self._server.messages(HINT_PATTERN)) as hints:
                    async for channel, keys in hints:
                        self._ring(channel[len("hint:{") : -1], keys.split())
            except QueueingError:
                await asyncio.sleep(_RESUBSCRIBE_SECONDS)  # readers poll meanwhile

    def _ring(self, lane: str, keys: list[str]) -> None:
        for key in keys:
            self._bells.ring(f"{lane}:{key}")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._settings.watch_seconds)
            self._forget_readers()
            for lane in [lane for lane, readers in self._lanes.items() if readers > 0]:
                try:
                    await self._reap(lane)
                except QueueingError:
                    continue  # the readers' own calls say so
            self._lanes = +self._lanes

    def _forget_readers(self) -> None:
        """Drop the places of readers that did not come back; one that does after all looks first."""
        gone = asyncio.get_running_loop().time() - self._settings.watch_seconds
        for place, standing in tuple(self._standing.items()):
            if standing.since < gone:
                self._leave(self._standing.pop(place))


def _ends_before(last: tuple[StreamEvent, ...], after: Cursor) -> tuple[StreamEvent, ...]:
    """The end of a job whose server lost entries that it had given out, for a reader who has them."""
    return tuple(event for event in last if isinstance(event, EndEvent) and event.cursor < after)
