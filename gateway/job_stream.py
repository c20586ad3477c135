"""``GET /v1/jobs/{id}/stream``: one job's events, from any cursor, each exactly once."""

from __future__ import annotations

from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway.gateway.errors import invalid_request
from headway.gateway.event_stream import EventStreamWriter, leave_running, serve
from headway.gateway.follow import Following, follow
from headway.gateway.gateway import Gateway
from headway.gateway.job_objects import event_name, event_object
from headway.gateway.request_record import record_of
from headway.gateway.sse import frame, resume_cursor, resume_field
from headway.queueing.events import Cursor, JobState, StreamEvent


async def open_job_stream(gateway: Gateway, job_id: str, headers: Headers, query: QueryParams) -> Response:
    """The stream, or 204 for a reader that has everything: it tells a browser to stop reconnecting.

    Raises UnknownJobError, and ApiError 400 for what is no cursor or beyond what an ended job published.
    """
    after = resume_cursor(headers, query)
    status = await gateway.queue.status(job_id)
    has_ended = status.state is JobState.FINISHED
    # Before that, an honest reader may be ahead: tokens that a failover lost after they were read come again.
    if has_ended and after.tokens > status.committed_tokens:
        raise invalid_request(
            f"cursor {after} lies beyond the {status.committed_tokens} tokens of this job",
            param=resume_field(headers),
            code="invalid_cursor",
        )
    if has_ended and not await gateway.queue.read(job_id, after, wait_seconds=0):
        return Response(status_code=204)
    return JobStream(gateway, job_id, after)


class JobStream(Response):
    """Follows a job; a reader that leaves does not cancel it, since it may come back with its cursor."""

    def __init__(self, gateway: Gateway, job_id: str, after: Cursor) -> None:
        super().__init__()
        self._gateway = gateway
        self._job_id = job_id
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Follow the job to its end."""
        writer = EventStreamWriter(self._gateway, send, error_event="error")
        try:
            await serve(
                self._gateway,
                self._stream(writer),
                writer,
                receive,
                abandon=leave_running,
                job_ids=lambda: (self._job_id,),
            )
        finally:
            record_of(scope).note(jobs=(self._job_id,), error=writer.failure.code if writer.failure else None)

    async def _stream(self, writer: EventStreamWriter) -> None:
        following = follow(self._gateway, self._job_id, after=self._after)
        with self._gateway.metrics.open_streams.track_inprogress():
            try:
                await writer.pump(JobFrames(following), lambda: {"x-headway-job-id": self._job_id})
            finally:
                await following.close()


class JobFrames:
    """One frame per event, its cursor as the event's id."""

    def __init__(self, following: Following) -> None:
        self._following = following

    async def next_frames(self, wait_seconds: float) -> bytes | None:
        """All events that are ready as one write; None after the terminal event."""
        if self._following.has_ended:
            return None
        batch = await self._following.next_batch(wait_seconds)
        return b"".join(_frame(event) for _, event in batch)


def _frame(event: StreamEvent) -> bytes:
    return frame(event_object(event), event_id=str(event.cursor), event=event_name(event))
