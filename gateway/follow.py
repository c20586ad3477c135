"""Following jobs: each reader pulls by its own cursor, so a slow one holds one batch and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from headway.gateway.errors import internal_error, stream_damaged
from headway.gateway.gateway import Gateway
from headway.queueing.errors import QueueUnavailableError
from headway.queueing.events import START, Cursor, EndEvent, JobResult, JobState, StreamEvent
from headway.queueing.protocol import Queue

_GRACE_SECONDS: Final = 3.0
"""What a read may take beyond the time that it was given: then the server hangs. A call to it would take
longer to say so, and pings must not wait for that."""


class Follower:
    """Reads one job's events in order from a cursor to its end, over short outages of the queue."""

    def __init__(
        self, queue: Queue, job_id: str, after: Cursor, *, outage_seconds: float, clock: Callable[[], float]
    ) -> None:
        self.job_id = job_id
        self.cursor = after
        self.has_ended = False
        self._queue = queue
        self._outage_seconds = outage_seconds
        self._clock = clock
        self._away_since: float | None = None

    async def next_batch(self, wait_seconds: float) -> tuple[StreamEvent, ...]:
        """The next events, or nothing after about that long, and never much longer.

        Raises UnknownJobError, QueueUnavailableError once the queue has been away for ``outage_seconds``, and
        ApiError 500 for a job that has ended without a terminal event in its stream.
        """
        asked = self._clock()
        try:
            async with asyncio.timeout(wait_seconds + _GRACE_SECONDS):
                events = await self._queue.read(self.job_id, self.cursor, wait_seconds=wait_seconds)
            # A read that found nothing and did not wait either would be repeated at once, and for ever.
            if not events and self._clock() - asked < wait_seconds / 2 and await self._has_no_end():
                raise stream_damaged(self.job_id)
        except (QueueUnavailableError, TimeoutError) as error:
            away = error if isinstance(error, QueueUnavailableError) else _hung()
            await self._sit_out(away, wait_seconds)
            return ()
        self._away_since = None
        if events:
            self.cursor = events[-1].cursor
            self.has_ended = isinstance(events[-1], EndEvent)
        return events

    async def _has_no_end(self) -> bool:
        """Whether the job has ended, and nothing follows the cursor all the same."""
        if (await self._queue.status(self.job_id)).state is not JobState.FINISHED:
            return False
        return not await self._queue.read(self.job_id, self.cursor, wait_seconds=0)

    async def _sit_out(self, error: QueueUnavailableError, wait_seconds: float) -> None:
        now = self._clock()
        if self._away_since is None:
            self._away_since = now
        if now - self._away_since >= self._outage_seconds:
            raise error
        await asyncio.sleep(min(error.retry_after_seconds, wait_seconds, 0.5))


def _hung() -> QueueUnavailableError:
    return QueueUnavailableError("the queue's server does not answer")


class Following:
    """Several jobs followed at once; each has at most one batch read ahead of the reader."""

    def __init__(self, followers: Sequence[Follower], *, read_wait_seconds: float) -> None:
        self._followers = followers
        self._read_wait_seconds = read_wait_seconds
        self._reads: dict[asyncio.Task[tuple[StreamEvent, ...]], int] = {}

    @property
    def has_ended(self) -> bool:
        """Whether every job's terminal event has been handed out."""
        return all(follower.has_ended for follower in self._followers)

    async def next_batch(self, wait_seconds: float) -> list[tuple[int, StreamEvent]]:
        """Events with the number of their job, or nothing after that long; raises what a Follower raises."""
        if len(self._followers) == 1:
            return await self._next_of_one(self._followers[0], wait_seconds)
        reading = set(self._reads.values())
        for number, follower in enumerate(self._followers):
            if not follower.has_ended and number not in reading:
                # Shorter than a ping's interval: a read in flight must not outlive a stop by much.
                self._reads[asyncio.create_task(follower.next_batch(self._read_wait_seconds))] = number
        done, _ = await asyncio.wait(self._reads, timeout=wait_seconds, return_when=asyncio.FIRST_COMPLETED)
        batch: list[tuple[int, StreamEvent]] = []
        for task in sorted(done, key=self._reads.__getitem__):
            number = self._reads.pop(task)
            batch += [(number, event) for event in task.result()]
        return batch

    async def _next_of_one(self, follower: Follower, wait_seconds: float) -> list[tuple[int, StreamEvent]]:
        """The same without a task for each read: nearly every stream has one job, and each token one read."""
        events = await follower.next_batch(min(wait_seconds, self._read_wait_seconds))
        return [(0, event) for event in events]

    async def close(self) -> None:
        """Stop all reads."""
        for task in self._reads:
            task.cancel()
        await asyncio.gather(*self._reads, return_exceptions=True)
        self._reads.clear()


def follow(gateway: Gateway, *job_ids: str, after: Cursor = START) -> Following:
    """The events of jobs, of each from a position on, with the gateway's patience; the caller closes it."""
    settings = gateway.settings
    followers = [
        Follower(gateway.queue, job_id, after, outage_seconds=settings.outage_seconds, clock=gateway.clock)
        for job_id in job_ids
    ]
    return Following(followers, read_wait_seconds=settings.read_wait_seconds)


async def result_of(gateway: Gateway, job_id: str) -> JobResult:
    """The answer of a job that has ended; raises ApiError 500 when there is none."""
    result = await gateway.queue.result(job_id)
    if result is None:
        raise internal_error()
    return result
