"""The jobs that one request posts and stays connected for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from headway.gateway.errors import ApiError, from_end
from headway.gateway.follow import Following
from headway.gateway.gateway import Gateway
from headway.gateway.job_fields import FieldNames, as_asked
from headway.gateway.metrics import JobMeter
from headway.gateway.quota_headers import quota_headers
from headway.queueing.errors import QueueUnavailableError
from headway.queueing.events import EndEvent, EndReason
from headway.queueing.messages import Job
from headway.queueing.protocol import Cancelled
from headway.queueing.quota_values import QuotaStanding

_log = structlog.stdlib.get_logger("headway.gateway")


class JobRun:
    """Posts the jobs, and cancels them when the request ends before they do.

    Both happen in tasks of their own: a handler that is cancelled in the middle of either neither leaves a
    job that nobody knows of nor loses the cancel. Jobs that detach, and jobs that an earlier request posted
    under the same idempotency key, are left alone.
    """

    def __init__(
        self, gateway: Gateway, jobs: Sequence[Job], meters: Sequence[JobMeter], names: FieldNames
    ) -> None:
        """``names``: what the request calls the jobs' fields, for errors."""
        self.job_count = len(jobs)
        self._jobs = tuple(jobs)
        self.meters = tuple(meters)
        self._gateway = gateway
        self._names = names
        self.standing: QuotaStanding | None = None
        """The tenant's rates after the last job posted."""
        self._job_ids: list[str] = []
        self._to_cancel: list[tuple[str, JobMeter]] = []
        self._submission: asyncio.Task[None] | None = None

    @property
    def job_ids(self) -> tuple[str, ...]:
        """The ids of the jobs posted so far, in order."""
        return tuple(self._job_ids)

    async def submit(self) -> None:
        """Post all jobs; raises what ``Queue.submit`` raises.

        They are forgotten then: a prompt may be a megabyte, and its answer may take minutes.
        """
        self._submission = self._gateway.errands.start(self._submit_all())
        await asyncio.shield(self._submission)

    @property
    def headers(self) -> dict[str, str]:
        """Of an answer to the request: the jobs posted so far, and how the tenant's rates stand."""
        named = {"x-headway-job-id": ", ".join(self._job_ids)} if self._job_ids else {}
        return named | quota_headers(self.standing)

    async def wait_for_ends(self, following: Following) -> None:
        """See all events of the jobs; raises ApiError for one that ended badly."""
        settings = self._gateway.settings
        while not following.has_ended:
            for number, event in await following.next_batch(settings.read_wait_seconds):
                self.meters[number].saw(event)
                if isinstance(event, EndEvent) and (error := self.error_of(number, event)):
                    raise error
            if not following.has_ended:
                await asyncio.sleep(settings.answer_pause_seconds)

    def error_of(self, number: int, end: EndEvent) -> ApiError | None:
        """What the end of a job means to its client; None: its answer is complete."""
        error = from_end(end, self._job_ids[number])
        return None if error is None else as_asked(error, self._names)

    async def abandon(self, reason: str) -> None:
        """Cancel what was posted; returns once it is done or ``cancel_seconds`` have passed."""
        errand = self._gateway.errands.start(self._cancel_all(reason))
        await asyncio.wait({errand}, timeout=self._gateway.settings.cancel_seconds)

    async def _submit_all(self) -> None:
        jobs, self._jobs = self._jobs, ()
        for job, meter in zip(jobs, self.meters, strict=True):
            submitted = await self._gateway.unanswered.submit(job)
            self.standing = submitted.standing or self.standing
            self._job_ids.append(submitted.job_id)
            if submitted.created:
                tenant = self._gateway.metrics.tenant(job.tenant)
                self._gateway.metrics.accepted.labels(job.model, tenant, job.priority.value).inc()
                if job.on_disconnect == "cancel":
                    self._to_cancel.append((submitted.job_id, meter))
            else:
                self._gateway.metrics.repeated.labels(job.model).inc()

    async def _cancel_all(self, reason: str) -> None:
        if self._submission is not None:
            await asyncio.wait({self._submission}, timeout=self._gateway.settings.cancel_seconds)
        # All at once: in an outage each of them has the whole time, and one that fails costs no other.
        cancels = [self._cancel(job_id, reason) for job_id, _ in self._to_cancel]
        outcomes = await asyncio.gather(*cancels, return_exceptions=True)
        for (job_id, meter), outcome in zip(self._to_cancel, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                _log.warning("job could not be cancelled", job=job_id, error=repr(outcome))
            else:
                _log.info("job cancelled", job=job_id, reason=reason, met=outcome.value)
                meter.ended(EndReason.CANCELLED)

    async def _cancel(self, job_id: str, reason: str) -> Cancelled:
        """Ask for the end of one job, over an outage of up to ``cancel_seconds``; raises QueueingError."""
        give_up_at = self._gateway.clock() + self._gateway.settings.cancel_seconds
        while True:
            try:
                return await self._gateway.queue.cancel(job_id, reason)
            except QueueUnavailableError as error:
                if self._gateway.clock() >= give_up_at:
                    raise
                await asyncio.sleep(min(error.retry_after_seconds, 0.2))
