"""An OpenAI answer: posts the jobs, follows them, and responds whole or as a stream."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway.gateway.chunk_positions import (
    ChunkPosition,
    check_published,
    position_of,
    resumed_position,
)
from headway.gateway.errors import ApiError
from headway.gateway.event_stream import EventStreamWriter, serve
from headway.gateway.follow import Following, follow, result_of
from headway.gateway.gateway import Gateway
from headway.gateway.job_run import JobRun
from headway.gateway.json_response import json_response
from headway.gateway.metrics import JobMeter
from headway.gateway.openai_answers import ChunkStream, whole_answer
from headway.gateway.openai_styles import Envelope, Style
from headway.gateway.request_record import record_of
from headway.gateway.sse import DONE, frame
from headway.queueing.events import EndEvent, JobResult, StreamEvent
from headway.queueing.messages import Job


class Answer(Response):
    """Everything of a chat or completions request after its validation, under one guard.

    The guard sees the client leave in each of four windows (before the jobs are claimed, before the first
    token, in the middle of the stream, and while a whole answer is awaited) and then cancels the jobs.
    """

    def __init__(
        self,
        gateway: Gateway,
        jobs: Sequence[Job],
        style: Style,
        envelope: Envelope,
        *,
        streams: bool,
        includes_usage: bool,
    ) -> None:
        super().__init__()
        self._gateway = gateway
        self._jobs = jobs
        self._style = style
        self._envelope = envelope
        self._streams = streams
        self._includes_usage = includes_usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Post, follow and respond."""
        record = record_of(scope)
        meters = [self._meter(job, record.started) for job in self._jobs]
        run = JobRun(self._gateway, self._jobs, meters, self._envelope.names)
        self._jobs = ()
        writer = EventStreamWriter(self._gateway, send)
        after = resumed_position(Headers(scope=scope), job_count=run.job_count) if self._streams else None
        work = self._stream(run, writer, after) if self._streams else self._whole(run, scope, receive, send)
        try:
            await serve(
                self._gateway, work, writer, receive, abandon=run.abandon, job_ids=lambda: run.job_ids
            )
        except ApiError as error:
            error.headers = run.headers | error.headers  # what was generated is kept under that id
            raise
        finally:
            record.note(jobs=run.job_ids, error=writer.failure.code if writer.failure else None)

    def _meter(self, job: Job, started: float) -> JobMeter:
        return JobMeter(
            self._gateway.metrics,
            model=job.model,
            tenant=job.tenant,
            started=started,
            clock=self._gateway.clock,
            streams=self._streams,
        )

    async def _stream(self, run: JobRun, writer: EventStreamWriter, after: ChunkPosition | None) -> None:
        await run.submit()
        following = follow(self._gateway, *run.job_ids)
        chunks = ChunkStream(self._style, self._envelope, self._answer_id(run), self._includes_usage)
        with self._gateway.metrics.open_streams.track_inprogress():
            try:
                await writer.pump(AnswerFrames(run, following, chunks, after), lambda: run.headers)
            finally:
                await following.close()

    async def _whole(self, run: JobRun, scope: Scope, receive: Receive, send: Send) -> None:
        results = await self._results(run)
        answer = whole_answer(self._style, self._envelope, self._answer_id(run), results)
        await json_response(answer, headers=run.headers)(scope, receive, send)

    async def _results(self, run: JobRun) -> list[JobResult]:
        """Post the jobs and wait for the end of all; raises ApiError for one that ended badly."""
        await run.submit()
        following = follow(self._gateway, *run.job_ids)
        try:
            await run.wait_for_ends(following)
        finally:
            await following.close()
        return [await result_of(self._gateway, job_id) for job_id in run.job_ids]

    def _answer_id(self, run: JobRun) -> str:
        return self._style.id_prefix + run.job_ids[0].rpartition(":")[2]


class AnswerFrames:
    """The frames of a streamed answer; ``[DONE]`` comes only after a normal end of all jobs."""

    def __init__(
        self, run: JobRun, following: Following, chunks: ChunkStream, after: ChunkPosition | None = None
    ) -> None:
        """``after``: the chunk that the reader of a single job has already."""
        self._run = run
        self._following = following
        self._chunks = chunks
        self._after = after
        self._has_chunks = False
        self._ended = 0
        self._failure: ApiError | None = None
        self._is_done = False

    async def next_frames(self, wait_seconds: float) -> bytes | None:
        """All chunks that are ready as one write; raises ApiError for a job that ended badly."""
        if self._failure is not None:
            raise self._failure
        if self._is_done:
            return None
        frames: list[bytes] = []
        for number, event in await self._following.next_batch(wait_seconds):
            self._run.meters[number].saw(event)
            if isinstance(event, EndEvent) and self._after is not None:
                check_published(self._after, event.cursor)
            error = self._run.error_of(number, event) if isinstance(event, EndEvent) else None
            chunks = self._chunks.chunks(number, event)
            self._has_chunks = self._has_chunks or bool(chunks)
            if isinstance(event, EndEvent) and (error is None or self._has_chunks):
                chunks += self._usage()
            frames += self._frames(event, chunks)
            if error is not None:
                return self._failed(error, frames)
        if self._following.has_ended:
            self._is_done = True
            frames.append(DONE)
        return b"".join(frames)

    def _usage(self) -> list[dict[str, object]]:
        """The usage chunk once all jobs have ended, also when the last one ended badly: it is billed."""
        self._ended += 1
        usage = self._chunks.usage_chunk() if self._ended == self._run.job_count else None
        return [] if usage is None else [usage]

    def _frames(self, event: StreamEvent, chunks: list[dict[str, object]]) -> list[bytes]:
        if self._run.job_count > 1:
            # Cursors of several jobs cannot be told apart, so their chunks carry none.
            return [frame(chunk) for chunk in chunks]
        places = [position_of(event.cursor, index, len(chunks)) for index in range(len(chunks))]
        return [
            frame(chunk, event_id=str(place))
            for chunk, place in zip(chunks, places, strict=True)
            if self._after is None or place > self._after
        ]

    def _failed(self, error: ApiError, frames: list[bytes]) -> bytes:
        """What came before the failure goes out first; with nothing before it, the failure is the answer."""
        if not frames:
            raise error
        self._failure = error
        return b"".join(frames)
