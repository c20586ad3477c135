"""Answering a responses request while its client stays connected: whole, or as a stream."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway.gateway.errors import ApiError
from headway.gateway.event_stream import EventStreamWriter, serve
from headway.gateway.follow import follow, result_of
from headway.gateway.gateway import Gateway
from headway.gateway.job_fields import RESPONSE_FIELDS
from headway.gateway.job_run import JobRun
from headway.gateway.json_response import json_response
from headway.gateway.metrics import JobMeter
from headway.gateway.request_record import record_of
from headway.gateway.response_jobs import STORE
from headway.gateway.response_objects import form_of
from headway.gateway.response_stream import ResponseFrames
from headway.queueing.errors import QueueingError
from headway.queueing.messages import Job


class ResponseAnswer(Response):
    """Posts the job, follows it and responds; a client that leaves cancels it, unless the job detaches."""

    def __init__(self, gateway: Gateway, job: Job, *, streams: bool) -> None:
        super().__init__()
        self._gateway = gateway
        self._job = job
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Post, follow and respond."""
        record = record_of(scope)
        meter = JobMeter(
            self._gateway.metrics,
            model=self._job.model,
            tenant=self._job.tenant,
            started=record.started,
            clock=self._gateway.clock,
            streams=self._streams,
        )
        run = JobRun(self._gateway, (self._job,), (meter,), RESPONSE_FIELDS)
        writer = EventStreamWriter(self._gateway, send, error_event="error")
        work = self._stream(run, writer) if self._streams else self._whole(run, scope, receive, send)
        try:
            await serve(
                self._gateway, work, writer, receive, abandon=run.abandon, job_ids=lambda: run.job_ids
            )
        except ApiError as error:
            error.headers = run.headers | error.headers
            raise
        finally:
            record.note(jobs=run.job_ids, error=writer.failure.code if writer.failure else None)

    async def _stream(self, run: JobRun, writer: EventStreamWriter) -> None:
        await run.submit()
        (job_id,) = run.job_ids
        form = form_of(await self._gateway.queue.status(job_id), self._job)
        following = follow(self._gateway, job_id)
        frames = ResponseFrames(self._gateway, following, form, meter=run.meters[0])
        with self._gateway.metrics.open_streams.track_inprogress():
            try:
                await writer.pump(frames, lambda: run.headers)
            finally:
                await following.close()
        self._forget(job_id)

    async def _whole(self, run: JobRun, scope: Scope, receive: Receive, send: Send) -> None:
        await run.submit()
        (job_id,) = run.job_ids
        following = follow(self._gateway, job_id)
        try:
            await run.wait_for_ends(following)
        finally:
            await following.close()
        result = await result_of(self._gateway, job_id)
        status = await self._gateway.queue.status(job_id)
        made = form_of(status, self._job).now(status, result)
        await json_response(made, headers=run.headers)(scope, receive, send)
        self._forget(job_id)

    def _forget(self, job_id: str) -> None:
        """Once it is delivered, keep nothing of what was not to be stored.

        With an idempotency key it is kept for the repeat that the key announces, and found by nothing else.
        """
        if self._job.notes.get(STORE) is False and self._job.idempotency_key is None:
            self._gateway.errands.start(self._forgotten(job_id))

    async def _forgotten(self, job_id: str) -> None:
        try:
            await self._gateway.queue.forget(job_id)
        except QueueingError:
            return  # its retention ends it
