"""Reading token streams: any number of waiting readers share one subscriber and one connection.

A reader asks for the entries behind its cursor; when there are none its watch stays, and looks when a hint
names its job (``watches.py``). One that comes straight back for what follows does not look first: had there
been more, a hint would have said so. No reader holds a connection, and a slow one holds nothing at all. While
readers of a lane wait, its expired leases and passed deadlines are looked for, so that nobody hangs on a dead
worker.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final

from headway.queueing.codec import decode_events, decode_result
from headway.queueing.errors import QueueingError, UnknownJobError
from headway.queueing.events import START, Cursor, EndEvent, StreamEvent
from headway.queueing.ids import JobId
from headway.queueing.keys import HINT_PATTERN, JobKeys
from headway.queueing.results import events_of
from headway.queueing.server import Server
from headway.queueing.server_errors import WrongTypeError
from headway.queueing.settings import READ_LIMIT, QueueSettings
from headway.queueing.watches import Watch, Watches

_RESUBSCRIBE_SECONDS: Final = 0.5


class StreamReader:
    """``Queue.read`` over a server; ``reap`` takes a lane's name and ends what nobody will end."""

    def __init__(
        self, server: Server, settings: QueueSettings, reap: Callable[[str], Awaitable[object]]
    ) -> None:
        self._server = server
        self._settings = settings
        self._reap = reap
        self._watches = Watches(server, settings.poll_seconds)
        self._lanes: Counter[str] = Counter()
        self._standing: dict[tuple[JobId, Cursor], Watch] = {}
        """Watches whose readers took all there was, and are expected back."""
        self._background: list[asyncio.Task[None]] = []

    async def read(self, job: JobId, after: Cursor, wait_seconds: float) -> tuple[StreamEvent, ...]:
        """See ``Queue.read``."""
        until = asyncio.get_running_loop().time() + wait_seconds
        if wait_seconds > 0:
            self._start()
        watch = self._standing.pop((job, after), None)
        is_expected = watch is not None and wait_seconds > 0
        if watch is None:
            watch = self._watches.add(job, after)
        self._lanes[job.lane] += 1
        try:
            events = await self._events(watch, until, is_expected=is_expected)
        except BaseException:
            self._watches.drop(watch)
            raise
        finally:
            self._lanes[job.lane] -= 1
        if not self._stand(watch, events, until):
            self._watches.drop(watch)
        return events

    async def close(self) -> None:
        """Stop listening, and wake the readers that still wait: the closed server refuses their next call."""
        running = {task for task in self._background if not task.done()}
        while running:  # Python 3.11's wait_for, inside the client library, can swallow a cancel: ask again
            for task in running:
                task.cancel()
            _, running = await asyncio.wait(running, timeout=0.2)
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background.clear()
        self._watches.ring_all()

    async def _events(self, watch: Watch, until: float, *, is_expected: bool) -> tuple[StreamEvent, ...]:
        """The next events, or none until then; a reader who was expected waits for a hint before it looks."""
        may_have_ended = True  # asked once: the end comes with a hint
        looking = self._watches.wait(watch, until) if is_expected else self._watches.look(watch)
        while not (events := decode_events(await looking)):
            if may_have_ended and await self._has_ended(watch.job):
                return await self._read_ended(watch)
            may_have_ended = False
            if asyncio.get_running_loop().time() >= until:
                return ()
            looking = self._watches.wait(watch, until)
        return events

    def _stand(self, watch: Watch, events: Sequence[StreamEvent], until: float) -> bool:
        """Whether these are all events so far and their reader is expected back: its watch waits for it."""
        if not events or until <= watch.looked or len(events) >= READ_LIMIT:
            return False
        last = events[-1]
        if isinstance(last, EndEvent):
            return False
        watch.after = last.cursor
        before = self._standing.pop((watch.job, last.cursor), None)
        if before is not None:
            self._watches.drop(before)
        self._standing[watch.job, last.cursor] = watch
        return True

    async def _has_ended(self, job: JobId) -> bool:
        try:
            state = await self._server.call("HGET", JobKeys(job).record, "state")
        except WrongTypeError:
            state = None  # somebody wrote over the record
        if state is None:
            raise UnknownJobError(f"no job {job}, or its retention time has passed")
        return state == b"finished"

    async def _read_ended(self, watch: Watch) -> tuple[StreamEvent, ...]:
        events = decode_events(await self._watches.look(watch))  # it may have ended after the first look
        if events:
            return events
        job, after = watch.job, watch.after
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

    # -- hints, and what a lane's silence may mean ----------------------------------------------------

    def _start(self) -> None:
        if not self._background:
            self._background = [
                asyncio.create_task(self._listen(), name="headway-hints"),
                asyncio.create_task(self._watch(), name="headway-watch"),
                asyncio.create_task(self._watches.poll(), name="headway-poll"),
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
            self._watches.ring(f"{lane}:{key}")

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
        for place, watch in tuple(self._standing.items()):
            if watch.looked < gone:
                self._watches.drop(self._standing.pop(place))


def _ends_before(last: tuple[StreamEvent, ...], after: Cursor) -> tuple[StreamEvent, ...]:
    """The end of a job whose server lost entries that it had given out, for a reader who has them."""
    return tuple(event for event in last if isinstance(event, EndEvent) and event.cursor < after)
