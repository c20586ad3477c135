"""Following a response: the frames of its stream, for who posts it and for who comes back."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway.gateway.errors import ApiError, from_end, invalid_request
from headway.gateway.event_stream import EventStreamWriter, leave_running, serve
from headway.gateway.follow import Following, follow, result_of
from headway.gateway.gateway import Gateway
from headway.gateway.job_fields import RESPONSE_FIELDS, as_asked
from headway.gateway.metrics import JobMeter
from headway.gateway.request_record import record_of
from headway.gateway.response_events import STRIDE, ResponseEvents, last_number
from headway.gateway.response_ids import response_id_of
from headway.gateway.response_objects import ResponseForm
from headway.queueing.errors import UnknownJobError
from headway.queueing.events import Cursor, EndEvent, JobState, JobStatus, StreamEvent

_NUMBER_DIGITS: Final = 15


class ResponseFrames:
    """The frames of one response.

    ``meter``: of the request that posted it, for which a bad end before the first event is an error.
    """

    def __init__(
        self,
        gateway: Gateway,
        following: Following,
        form: ResponseForm,
        *,
        after: int | None = None,
        meter: JobMeter | None = None,
    ) -> None:
        self._gateway = gateway
        self._following = following
        self._form = form
        self._events = ResponseEvents(form, after)
        self._meter = meter
        self._has_begun = False

    async def next_frames(self, wait_seconds: float) -> bytes | None:
        """All events that are ready as one write; None after the last; raises ApiError."""
        if self._following.has_ended:
            return None
        frames: list[bytes] = []
        for _, event in await self._following.next_batch(wait_seconds):
            frames += await self._frames(event)
        return b"".join(self._opening() + frames)

    def _opening(self) -> list[bytes]:
        if self._has_begun:
            return []
        self._has_begun = True
        return [made.frame() for made in self._events.begin()]

    async def _frames(self, event: StreamEvent) -> list[bytes]:
        if self._meter is not None:
            self._meter.saw(event)
        if not isinstance(event, EndEvent):
            return self._opening() + [made.frame() for made in self._events.tokens(event)]
        if self._meter is not None and not self._has_begun and (error := from_end(event, self._form.job_id)):
            raise as_asked(error, RESPONSE_FIELDS)  # nothing was sent: it becomes the status
        result = await result_of(self._gateway, self._form.job_id)
        status = await self._gateway.queue.status(self._form.job_id)
        made = self._events.end(event, result, status.finished_ms // 1000)
        return self._opening() + [each.frame() for each in made]


class ResponseStream(Response):
    """Follows a response from a position on; a reader that leaves does not cancel it."""

    def __init__(self, gateway: Gateway, form: ResponseForm, after: int | None) -> None:
        super().__init__()
        self._gateway = gateway
        self._form = form
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Follow the response to its end."""
        job_id = self._form.job_id
        writer = EventStreamWriter(self._gateway, send, error_event="error")
        try:
            await serve(
                self._gateway,
                self._stream(writer),
                writer,
                receive,
                abandon=leave_running,
                job_ids=lambda: (job_id,),
            )
        finally:
            record_of(scope).note(jobs=(job_id,), error=writer.failure.code if writer.failure else None)

    async def _stream(self, writer: EventStreamWriter) -> None:
        following = follow(self._gateway, self._form.job_id)
        frames = ResponseFrames(self._gateway, following, self._form, after=self._after)
        with self._gateway.metrics.open_streams.track_inprogress():
            try:
                await writer.pump(frames, lambda: {"x-headway-job-id": self._form.job_id})
            finally:
                await following.close()


async def open_response_stream(
    gateway: Gateway, form: ResponseForm, status: JobStatus, headers: Headers, query: QueryParams
) -> Response:
    """The stream, or 204 for a reader that has everything.

    Raises ApiError 400 for a number that no event of an ended response has, 404 when the events are gone.
    """
    after = last_read(headers, query)
    if status.state is not JobState.FINISHED:
        return ResponseStream(gateway, form, after)
    last = last_number(status.committed_tokens)
    if after is not None and after >= last:
        if after == last:
            return Response(status_code=204)
        raise invalid_request(
            f"'starting_after' {after} lies beyond the last event of this response, {last}",
            param="starting_after",
            code="invalid_cursor",
        )
    if after is not None and after >= STRIDE:
        await _check_kept(gateway, form.job_id)
    return ResponseStream(gateway, form, after)


async def _check_kept(gateway: Gateway, job_id: str) -> None:
    try:
        await gateway.queue.read(job_id, Cursor(1, 0), wait_seconds=0)
    except UnknownJobError:
        raise ApiError(
            404,
            "the events of this response are no longer kept (5 min after its end): stream it from the start, "
            f"or fetch it with GET /v1/responses/{response_id_of(job_id)}",
            code="events_not_kept",
            param="starting_after",
        ) from None


def last_read(headers: Headers, query: QueryParams) -> int | None:
    """The last event that the reader has: ``Last-Event-ID``, else ``starting_after``; raises ApiError 400."""
    for param, text in (
        ("Last-Event-ID", headers.get("last-event-id")),
        ("starting_after", query.get("starting_after")),
    ):
        if text:
            if not (text.isascii() and text.isdigit()) or len(text) > _NUMBER_DIGITS:
                raise invalid_request(
                    f"{param} is the sequence_number of the last event that you have, not {text[:40]!r}",
                    param=param,
                    code="invalid_cursor",
                )
            return int(text)
    return None
