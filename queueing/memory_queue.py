"""The queue inside one process: the same promises as RedisQueue, for tests, simulations and embedding."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

from headway.queueing.batch_store import BatchStore
from headway.queueing.errors import UnknownJobError, not_ended
from headway.queueing.events import START, Cursor, EndReason, JobResult, JobState, StreamEvent
from headway.queueing.ids import JobId, check_entry_id, check_key, lane_of, new_key
from headway.queueing.memory_commands import MemoryCommands
from headway.queueing.memory_consumers import MemoryConsumerSide
from headway.queueing.memory_listing import MemoryListingSide
from headway.queueing.memory_quotas import MemoryQuotas
from headway.queueing.memory_record import Record
from headway.queueing.memory_tenants import MemoryTenants
from headway.queueing.messages import Job, decode_job, encode_job
from headway.queueing.protocol import Cancelled, Reaped, Submitted
from headway.queueing.results import events_of
from headway.queueing.settings import DEFAULTS, READ_LIMIT, QueueSettings
from headway.queueing.step_views import MemoryStepViews, StepViews
from headway.queueing.tenant_store import QuotaStore, TenantStore
from headway.queueing.webhook_store import WebhookStore
from headway.queueing.worker_card import WorkerCard


class MemoryQueue(MemoryConsumerSide, MemoryListingSide):
    """Keeps every promise of ``Queue`` within one event loop; nothing outlives the object.

    ``clock`` gives seconds since the epoch and may be virtual; ``rng`` draws keys, tokens and seeds.
    """

    def __init__(
        self,
        settings: QueueSettings = DEFAULTS,
        *,
        clock: Callable[[], float] = time.time,
        rng: Random | None = None,
    ) -> None:
        super().__init__(settings, clock=clock, rng=rng)
        self.tenant_store: TenantStore = MemoryTenants(clock)
        self.quota_store: QuotaStore = MemoryQuotas(clock, settings)
        self.step_views: StepViews = MemoryStepViews(clock)
        records = MemoryCommands(clock)
        self.batch_store = BatchStore(records)
        self.webhook_store = WebhookStore(records)

    # -- producers ------------------------------------------------------------------------------------

    async def submit(
        self, job: Job, *, key: str | None = None, reserved: str = "", asked: Job | None = None
    ) -> Submitted:
        """See ``Queue.submit``."""
        asked_body = None if asked is None else encode_job(asked)
        return await self.submit_body(
            job.model, encode_job(job), key=key, reserved=reserved, asked_body=asked_body
        )

    async def repeat_of(self, job: Job, *, key: str, asked: Job | None = None) -> Submitted | None:
        """See ``Queue.repeat_of``."""
        asked_body = None if asked is None else encode_job(asked)
        return self._store.repeat_of(job.model, check_key(key), encode_job(job), asked_body)

    async def submit_body(
        self,
        model: str,
        body: bytes,
        *,
        key: str | None = None,
        reserved: str = "",
        asked_body: bytes | None = None,
    ) -> Submitted:
        """Accept a body as raw producers post it, after the cheap checks only."""
        key = new_key(self._clock, self._rng) if key is None else check_key(key)
        return self._store.accept(model, key, body, reserved, asked_body)

    async def read(self, job_id: str, after: Cursor, *, wait_seconds: float) -> tuple[StreamEvent, ...]:
        """See ``Queue.read``."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_seconds
        while True:
            record = self._store.record(job_id)
            if not self._store.has_stream(record):
                return self._replayed(record, after)
            events = record.after(after, READ_LIMIT)
            left = until - loop.time()
            if events or record.state is JobState.FINISHED or left <= 0:
                return events
            await self._store.bells.wait(job_id, timeout_seconds=min(left, self._settings.poll_seconds))
            self._store.reap(JobId.parse(job_id).lane)

    def _replayed(self, record: Record, after: Cursor) -> tuple[StreamEvent, ...]:
        if after != START or record.result is None:
            raise UnknownJobError(
                f"the token stream of {record.job_id} is no longer kept: fetch its result, or read from 0"
            )
        return events_of(record.result)

    async def result(self, job_id: str) -> JobResult | None:
        """See ``Queue.result``."""
        return self._store.record(job_id).result

    async def job(self, job_id: str) -> Job:
        """See ``Queue.job``."""
        return decode_job(self._store.record(job_id).body)

    async def forget(self, job_id: str) -> None:
        """See ``Queue.forget``."""
        if self._store.record(job_id).state is not JobState.FINISHED:
            raise not_ended(job_id)
        self._store.forget(job_id)

    async def cancel(self, job_id: str, reason: str) -> Cancelled:
        """See ``Queue.cancel``."""
        record = self._store.record(job_id)
        if record.state is JobState.FINISHED:
            return Cancelled.FINISHED
        if record.cancel_reason is None:
            record.cancel_reason = reason
        if record.state is JobState.QUEUED:
            self._store.lane_with(record).remove(record, self._store.now_ms())
            self._store.end(record, EndReason.CANCELLED)
            return Cancelled.QUEUED
        worker = record.worker or ""
        self._cancels.setdefault(worker, []).append(job_id)
        self._store.bells.ring(f"worker:{worker}")
        return Cancelled.RUNNING

    async def retry(self, job_id: str, *, key: str | None = None) -> Submitted:
        """See ``Queue.retry``."""
        key = new_key(self._clock, self._rng) if key is None else check_key(key)
        record = self._store.find(job_id)
        if record is not None and record.state is not JobState.FINISHED:
            raise not_ended(job_id)
        repeated = str(JobId(JobId.parse(job_id).lane, key))
        if self._store.find(repeated) is not None:
            return Submitted(repeated, created=False)
        if record is None:
            raise UnknownJobError(f"nothing is kept of {job_id} that could be posted again")
        return self._store.accept_again(record.model, key, record.body, job_id)

    async def redrive(self, model: str, entry_id: str, *, key: str | None = None) -> Submitted:
        """See ``Queue.redrive``."""
        check_entry_id(entry_id)
        key = new_key(self._clock, self._rng) if key is None else check_key(key)
        dead = self._lane(model).dead
        for buried in tuple(dead):
            letter, body = buried
            if letter.entry_id == entry_id:
                submitted = self._store.accept_again(model, key, body, letter.job_id)
                if submitted.created:
                    dead.remove(buried)
                return submitted
        repeated = str(JobId(lane_of(model), key))
        if self._store.find(repeated) is None:
            raise UnknownJobError(f"nothing is kept of {entry_id} that could be posted again")
        return Submitted(repeated, created=False)

    # -- anyone ---------------------------------------------------------------------------------------

    async def workers(self) -> tuple[WorkerCard, ...]:
        """See ``Queue.workers``."""
        now = self._store.now_ms()
        return tuple(
            replace(card, heartbeat_age_seconds=(now - heard) / 1000)
            for _, (card, heard, until) in sorted(self._cards.items())
            if until > now
        )

    async def models(self) -> tuple[str, ...]:
        """See ``Queue.models``."""
        return tuple(sorted(self._models))

    async def reap(self, model: str) -> Reaped:
        """See ``Queue.reap``."""
        return self._store.reap(lane_of(model))

    async def expire_worker(self, model: str, worker_id: str) -> int:
        """See ``Queue.expire_worker``."""
        lane_name = lane_of(model)
        held = [
            record
            for record in self._store.lane(lane_name).records.values()
            if record.state is JobState.RUNNING and record.worker == worker_id
        ]
        for record in held:
            record.lease_ms = 0
        self._store.reap(lane_name)
        return len(held)

    async def check_writes(self, model: str) -> None:
        """See ``Queue.check_writes``."""

    async def check_server(self) -> tuple[str, ...]:
        """See ``Queue.check_server``."""
        return ("the queue lives in this process's memory: its jobs end with the process",)

    async def close(self) -> None:
        """See ``Queue.close``."""
        self._store.bells.ring_all()
