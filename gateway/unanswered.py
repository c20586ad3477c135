"""Jobs whose submit was never answered: taken back, since their client was told that they were not accepted.

A server that hangs or a link that breaks may have taken the job in all the same, or do so when it comes
back: then it would run for nobody, beside the one that the client posts again. A job under an idempotency key
is left alone, since its client's next try is the same job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import SystemRandom
from typing import Final

import structlog

from headway.gateway.errands import Errands
from headway.gateway.told_ends import await_end
from headway.queueing.admission import Admission
from headway.queueing.errors import NotNowError, QueueingError, QueueUnavailableError, UnknownJobError
from headway.queueing.ids import JobId, lane_of, new_key
from headway.queueing.messages import Job
from headway.queueing.protocol import Queue, Submitted

LOOK_SECONDS: Final = 1.0
LOOKS: Final = 3
"""Times that a job must be unknown to a server that answers: what was sent last may be read last."""
GIVE_UP_SECONDS: Final = 300.0
MOST_JOBS: Final = 10_000
"""More are not remembered: each would cost a call when the server has just come back."""

_log = structlog.stdlib.get_logger("headway.gateway")


class Unanswered:
    """Posts jobs, and keeps those whose fate is not known until it is."""

    def __init__(
        self,
        queue: Queue,
        admission: Admission,
        errands: Errands,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._queue = queue
        self._admission = admission
        self._errands = errands
        self._clock = clock
        self._wall_clock = wall_clock
        self._rng = SystemRandom()
        self._looks_left: dict[str, int] = {}
        self._since = 0.0

    async def submit(self, job: Job) -> Submitted:
        """See ``Admission.submit``; what it may have posted without an answer is taken back later.

        Whose end is to be told is written down before its client hears that it was accepted.
        """
        key = None if job.idempotency_key is not None else new_key(self._wall_clock, self._rng)
        try:
            submitted = await self._admission.submit(job, key=key)
        except NotNowError:
            raise  # an answer: nothing was written
        except QueueUnavailableError:
            if key is not None:
                self._remember(str(JobId(lane_of(job.model), key)))
            raise
        try:
            await await_end(self._queue, job, submitted.job_id)
        except QueueUnavailableError:
            if key is not None:
                self._remember(submitted.job_id)
            raise
        return submitted

    def _remember(self, job_id: str) -> None:
        if len(self._looks_left) >= MOST_JOBS:
            _log.warning("job may run unasked", job=job_id)
            return
        is_first = not self._looks_left
        self._looks_left[job_id] = LOOKS
        if is_first:
            self._since = self._clock()
            self._errands.start(self._take_back())

    async def _take_back(self) -> None:
        while self._looks_left and self._clock() - self._since < GIVE_UP_SECONDS:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                for job_id in tuple(self._looks_left):
                    await self._look(job_id)
                    self._since = self._clock()
            except QueueUnavailableError:
                continue
            except QueueingError as error:
                _log.warning("jobs may run unasked", error=str(error))
                break
        self._looks_left.clear()

    async def _look(self, job_id: str) -> None:
        try:
            met = await self._queue.cancel(job_id, "its client was told that it was not accepted")
        except UnknownJobError:
            self._looks_left[job_id] -= 1
            if not self._looks_left[job_id]:
                del self._looks_left[job_id]
        else:
            del self._looks_left[job_id]
            _log.info("job taken back", job=job_id, met=met.value)
