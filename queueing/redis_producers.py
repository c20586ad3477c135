"""The producers' side of RedisQueue: submit, read, result, cancel, status."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import cast

from headway.queueing.codec import decode_result, decode_status, pairs
from headway.queueing.errors import (
    IdempotencyConflictError,
    InvalidJobError,
    QueueFullError,
    UnknownJobError,
)
from headway.queueing.events import Cursor, JobResult, JobStatus, StreamEvent
from headway.queueing.ids import JobId, check_key, lane_of, new_key
from headway.queueing.keys import JobKeys, LaneKeys
from headway.queueing.messages import Job, check_job_size, encode_job
from headway.queueing.protocol import Cancelled, Submitted
from headway.queueing.reader import StreamReader
from headway.queueing.redis_side import RedisSide, milliseconds
from headway.queueing.server import RefusedError
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

    async def submit(self, job: Job, *, key: str | None = None) -> Submitted:
        """See ``Queue.submit``."""
        return await self.submit_body(job.model, encode_job(job), key=key)

    async def submit_body(self, model: str, body: bytes, *, key: str | None = None) -> Submitted:
        """Accept a body as raw producers post it, after the cheap checks only."""
        lane = lane_of(model)
        key = new_key(self._clock, self._rng) if key is None else check_key(key)
        check_job_size(len(body))
        try:
            reply = await self._server.fcall(
                "headway_submit",
                LaneKeys(lane).tag,
                key,
                body,
                self._settings.max_queued_jobs,
                milliseconds(self._settings.idempotency_seconds),
                milliseconds(self._settings.record_retention_seconds),
            )
        except RefusedError as error:
            raise _refusal(error) from None
        outcome, what = (part.decode() for part in cast("list[bytes]", reply))
        job_id = f"{lane}:{what}"
        if outcome == "full":
            raise QueueFullError(
                f"{model} has {what} jobs waiting, as many as it may",
                retry_after_seconds=self._settings.full_retry_seconds,
            )
        if outcome == "conflict":
            raise IdempotencyConflictError(f"the idempotency key was used with a different body, by {job_id}")
        return Submitted(job_id, created=outcome == "created")

    async def read(self, job_id: str, after: Cursor, *, wait_seconds: float) -> tuple[StreamEvent, ...]:
        """See ``Queue.read``."""
        return await self._reader.read(JobId.parse(job_id), after, wait_seconds)

    async def result(self, job_id: str) -> JobResult | None:
        """See ``Queue.result``."""
        keys = JobKeys(JobId.parse(job_id))
        state, kept = await self._server.pipeline([("HGET", keys.record, "state"), ("GET", keys.result)])
        if isinstance(kept, bytes):
            return decode_result(job_id, kept)
        if state in (None, b"finished"):
            raise _unknown(job_id)
        return None

    async def cancel(self, job_id: str, reason: str) -> Cancelled:
        """See ``Queue.cancel``."""
        job = JobId.parse(job_id)
        reply = await self._server.fcall(
            "headway_cancel", LaneKeys(job.lane).tag, job.key, reason, *self._keeps
        )
        if reply == b"unknown":
            raise _unknown(job_id)
        return Cancelled(cast("bytes", reply).decode())

    async def status(self, job_id: str) -> JobStatus:
        """See ``Queue.status``."""
        reply = await self._server.call("HGETALL", JobKeys(JobId.parse(job_id)).record)
        record = pairs(cast("list[bytes]", reply))
        if not record.get("state"):
            raise _unknown(job_id)
        return decode_status(job_id, record)


def _unknown(job_id: str) -> UnknownJobError:
    return UnknownJobError(f"no job {job_id}, or its retention time has passed")


def _refusal(error: RefusedError) -> InvalidJobError | RefusedError:
    """A refusal of the submit function as the error that it means."""
    found = _INVALID.search(str(error))
    return InvalidJobError(found[1], param=found[2]) if found else error
