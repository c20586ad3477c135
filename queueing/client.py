"""What most programs use: submit jobs, follow their tokens, fetch answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final, Self, TypeVar

from pydantic import ValidationError

from headway.queueing.admission import Admission
from headway.queueing.errors import QueueUnavailableError
from headway.queueing.events import START, Cursor, EndEvent, JobResult, JobState, JobStatus, StreamEvent
from headway.queueing.messages import Job, invalid_job
from headway.queueing.protocol import Cancelled, Queue, Submitted

T = TypeVar("T")

READ_SECONDS: Final = 15.0
"""One wait of a stream. Long, since a wait costs nothing; finite, so that a lost job is noticed."""


class Client:
    """A producer and consumer of jobs.

    ``async with Client.connect("redis://localhost:6379/0") as client: …``; ``unix:///path`` works too.
    """

    def __init__(self, queue: Queue, *, patience_seconds: float = 30.0) -> None:
        self.queue = queue
        self._admission = Admission(queue)
        self._patience_seconds = patience_seconds

    @classmethod
    def connect(cls, url: str = "redis://localhost:6379/0", *, patience_seconds: float = 30.0) -> Self:
        """A client of the queue at a Redis or Valkey server; the connection is made at first use."""
        from headway.queueing.redis_queue import RedisQueue

        return cls(RedisQueue(url), patience_seconds=patience_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def submit(self, job: Job | None = None, *, key: str | None = None, **fields: Any) -> Submitted:
        """Accept a job, given as a Job or as its fields (``model=…, prompt=…``), durably and once.

        The limits of the job's tenant hold. Raises InvalidJobError, NotAllowedError, QuotaExceededError,
        IdempotencyConflictError, QueueFullError, QueueUnavailableError.
        """
        if job is None:
            try:
                job = Job.model_validate(fields)
            except ValidationError as error:
                raise invalid_job(error) from None
        elif fields:
            raise TypeError("give a Job or its fields, not both")
        return await self._admission.submit(job, key=key)

    async def stream(self, job_id: str, after: Cursor | str = START) -> AsyncIterator[StreamEvent]:
        """Every event after a cursor exactly once, up to and with the EndEvent.

        Leaving the loop early leaves the job running. Survives a server that is away for up to
        ``patience_seconds``. Raises UnknownJobError, InvalidCursorError, QueueUnavailableError.
        """
        at = Cursor.parse(after) if isinstance(after, str) else after
        while True:
            events = await self._patiently(partial(self.queue.read, job_id, at, wait_seconds=READ_SECONDS))
            for event in events:
                at = event.cursor
                yield event
                if isinstance(event, EndEvent):
                    return
            if not events and await self._has_ended(job_id):
                if await self._patiently(partial(self.queue.read, job_id, at, wait_seconds=0)):
                    continue  # it ended between the two calls
                return

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """The call's answer, asked again for as long as the server is away within our patience."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._patience_seconds
        while True:
            try:
                return await call()
            except QueueUnavailableError as error:
                if loop.time() + error.retry_after_seconds > give_up:
                    raise
                await asyncio.sleep(error.retry_after_seconds)

    async def _has_ended(self, job_id: str) -> bool:
        return (await self._patiently(partial(self.queue.status, job_id))).state is JobState.FINISHED

    async def result(self, job_id: str, *, timeout_seconds: float | None = None) -> JobResult:
        """The final answer, waiting for it, over a server that is away as in ``stream``.

        Raises UnknownJobError, TimeoutError, QueueUnavailableError.
        """
        async with asyncio.timeout(timeout_seconds):
            while (result := await self._patiently(partial(self.queue.result, job_id))) is None:
                status = await self._patiently(partial(self.queue.status, job_id))
                async for _ in self.stream(job_id, Cursor(status.committed_tokens, 0)):
                    pass
        return result

    async def run(self, job: Job | None = None, **fields: Any) -> JobResult:
        """Submit a job and wait for its answer."""
        return await self.result((await self.submit(job, **fields)).job_id)

    async def cancel(self, job_id: str, reason: str = "cancelled by its producer") -> Cancelled:
        """Ask for the end of a job. Raises UnknownJobError."""
        return await self.queue.cancel(job_id, reason)

    async def status(self, job_id: str) -> JobStatus:
        """The job's record. Raises UnknownJobError."""
        return await self.queue.status(job_id)

    async def close(self) -> None:
        """Release the connections; jobs go on."""
        await self.queue.close()
