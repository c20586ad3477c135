"""``Client`` for programs without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Self, TypeVar

from headway.queueing.client import Client
from headway.queueing.events import START, Cursor, JobResult, JobStatus, StreamEvent
from headway.queueing.messages import Job
from headway.queueing.protocol import Cancelled, Queue, Submitted

T = TypeVar("T")


class SyncClient:
    """The verbs of ``Client``, blocking. Safe to share between threads.

    ``with SyncClient.connect("redis://localhost:6379/0") as client: …``. A private thread runs the event
    loop; it is a daemon, so a script that forgets ``close()`` still ends.
    """

    def __init__(self, queue: Queue, *, patience_seconds: float = 30.0) -> None:
        self._client = Client(queue, patience_seconds=patience_seconds)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headway-client", daemon=True)
        self._thread.start()

    @classmethod
    def connect(cls, url: str = "redis://localhost:6379/0", *, patience_seconds: float = 30.0) -> Self:
        """A client of the queue at a Redis or Valkey server (``redis://``, ``rediss://``, ``unix://``)."""
        client = Client.connect(url, patience_seconds=patience_seconds)
        return cls(client.queue, patience_seconds=patience_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, job: Job | None = None, *, key: str | None = None, **fields: Any) -> Submitted:
        """See ``Client.submit``."""
        return self._run(self._client.submit(job, key=key, **fields))

    def stream(self, job_id: str, after: Cursor | str = START) -> Iterator[StreamEvent]:
        """See ``Client.stream``."""
        events = self._client.stream(job_id, after)
        try:
            while (event := self._run(_next(events))) is not None:
                yield event
        finally:
            self._run(_close(events))

    def result(self, job_id: str, *, timeout_seconds: float | None = None) -> JobResult:
        """See ``Client.result``."""
        return self._run(self._client.result(job_id, timeout_seconds=timeout_seconds))

    def run(self, job: Job | None = None, **fields: Any) -> JobResult:
        """See ``Client.run``."""
        return self._run(self._client.run(job, **fields))

    def cancel(self, job_id: str, reason: str = "cancelled by its producer") -> Cancelled:
        """See ``Client.cancel``."""
        return self._run(self._client.cancel(job_id, reason))

    def status(self, job_id: str) -> JobStatus:
        """See ``Client.status``."""
        return self._run(self._client.status(job_id))

    def close(self) -> None:
        """Release the connections and end the thread; jobs go on."""
        if self._loop.is_closed():
            return
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("this client is closed")
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()  # Ctrl-C in the calling thread must not leave the call running
            raise


async def _next(events: AsyncIterator[StreamEvent]) -> StreamEvent | None:
    return await anext(events, None)


async def _close(events: AsyncIterator[StreamEvent]) -> None:
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()
