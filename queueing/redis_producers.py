"""The producers' side of RedisQueue: submit, read, result, cancel, and posting again."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import cast

from headway.queueing.codec import decode_result
from headway.queueing.errors import (
    IdempotencyConflictError,
    InvalidJobError,
    QueueFullError,
    UnknownJobError,
    not_ended,
    queue_full,
    unknown_job,
)
from headway.queueing.events import Cursor, JobResult, StreamEvent
from headway.queueing.ids import JobId, check_entry_id, check_key, lane_of, new_key
from headway.queueing.intake import fields_as_asked
from headway.queueing.keys import JobKeys, LaneKeys
from headway.queueing.messages import Job, check_job_size, decode_job, encode_job
from headway.queueing.protocol import Cancelled, Submitted
from headway.queueing.reader import StreamReader
from headway.queueing.redis_side import RedisSide
from headway.queueing.server import Argument, RefusedError
from headway.queueing.settings import DEFAULTS, QueueSettings

_INVALID = re.compile(r"HEADWAYINVALID ((\w+): .*)", re.DOTALL)


class ProducerSide(RedisSide):
    """What producers and readers call."""

    def __init__(
        self,
        url: str,
        settings: QueueSettings = DEFAULTS,
        *,
        clock: Callable[[], float],
        rng: Random | None,
    ) -> None:
        super().__init__(url, settings, clock=clock, rng=rng)
        self._reader = StreamReader(self._server, settings, self._reap_lane)

    async def submit(
        self, job: Job, *, key: str | None = None, reserved: str = "", asked: Job | None = None
    ) -> Submitted:
        """See ``Queue.submit``."""
        asked_fields = "" if asked is None else fields_as_asked(job, asked)
        return await self.submit_body(
            job.model, encode_job(job), key=key, reserved=reserved, asked_fields=asked_fields
        )

    async def repeat_of(self, job: Job, *, key: str, asked: Job | None = None) -> Submitted | None:
        """See ``Queue.repeat_of``."""
        asked_fields = "" if asked is None else fields_as_asked(job, asked)
        _, *limits = self._limits
        try:  # into a lane that takes no job at all, a repeat still gets its answer
            return await self._post(
                "headway_submit",
                lane_of(job.model),
                check_key(key),
                encode_job(job),
                0,
                *limits,
                "",
                asked_fields,
            )
        except QueueFullError:
            return None

    async def submit_body(
        self,
        model: str,
        body: bytes,
        *,
        key: str | None = None,
        reserved: str = "",
        asked_fields: str = "",
    ) -> Submitted:
        """Accept a body as raw producers post it, after the cheap checks only."""
        lane = lane_of(model)
        key = new_key(self._clock, self._rng) if key is None else check_key(key)
        check_job_size(len(body))
        return await self._post("headway_submit", lane, key, body, *self._limits, reserved, asked_fields)

    async def retry(self, job_id: str, *, key: str | None = None) -> Submitted:
        """See ``Queue.retry``."""
        job = JobId.parse(job_id)
        key = new_key(self._clock, self._rng) if key is None else check_key(key)
        return await self._post("headway_retry", job.lane, job.key, key, *self._limits)

    async def redrive(self, model: str, entry_id: str, *, key: str | None = None) -> Submitted:
        """See ``Queue.redrive``."""
        check_entry_id(entry_id)
        key = new_key(self._clock, self._rng) if key is None else check_key(key)
        return await self._post("headway_redrive", lane_of(model), entry_id, key, *self._limits)

    async def _post(self, function: str, lane: str, *arguments: Argument) -> Submitted:
        """Call a function that accepts jobs, and turn its answer into a value or an error."""
        try:
            reply = await self._server.durable_fcall(function, LaneKeys(lane).tag, *arguments)
        except RefusedError as error:
            raise _refusal(error) from None
        outcome, what, *rest = (part.decode() for part in cast("list[bytes]", reply))
        job_id = f"{lane}:{what}"
        match outcome:
            case "full":
                raise queue_full(lane, int(what), rest[0], int(rest[1]) / 1000)
            case "conflict":
                raise IdempotencyConflictError(
                    f"the idempotency key was used with a different body, by {job_id}"
                )
            case "unknown":
                raise UnknownJobError(f"nothing is kept of {what} that could be posted again")
            case "running":
                raise not_ended(job_id)
            case _:
                return Submitted(job_id, created=outcome == "created")

    async def read(self, job_id: str, after: Cursor, *, wait_seconds: float) -> tuple[StreamEvent, ...]:
        """See ``Queue.read``."""
        return await self._reader.read(JobId.parse(job_id), after, wait_seconds)

    async def result(self, job_id: str) -> JobResult | None:
        """See ``Queue.result``."""
        keys = JobKeys(JobId.parse(job_id))
        state, kept = await self._server.pipeline([("HGET", keys.record, "state"), ("GET", keys.result)])
        if isinstance(kept, bytes) and (result := decode_result(job_id, kept)) is not None:
            return result
        if state in (None, b"finished"):
            raise unknown_job(job_id)
        return None

    async def job(self, job_id: str) -> Job:
        """See ``Queue.job``."""
        body = await self._server.call("GET", JobKeys(JobId.parse(job_id)).body)
        if not isinstance(body, bytes):
            raise unknown_job(job_id)
        return decode_job(body)

    async def forget(self, job_id: str) -> None:
        """See ``Queue.forget``."""
        job = JobId.parse(job_id)
        match await self._server.fcall("headway_forget", LaneKeys(job.lane).tag, job.key):
            case b"unknown":
                raise unknown_job(job_id)
            case b"running":
                raise not_ended(job_id)
            case _:
                return

    async def cancel(self, job_id: str, reason: str) -> Cancelled:
        """See ``Queue.cancel``."""
        job = JobId.parse(job_id)
        reply = await self._server.fcall(
            "headway_cancel", LaneKeys(job.lane).tag, job.key, reason, *self._keeps
        )
        if reply == b"unknown":
            raise unknown_job(job_id)
        return Cancelled(cast("bytes", reply).decode())


def _refusal(error: RefusedError) -> InvalidJobError | RefusedError:
    """A refusal of the submit function as the error that it means."""
    found = _INVALID.search(str(error))
    return InvalidJobError(found[1], param=found[2]) if found else error
