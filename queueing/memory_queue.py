"""The queue inside one process: the same promises as RedisQueue, for tests, simulations and embedding."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from random import Random, SystemRandom

from headway.queueing.errors import UnknownJobError
from headway.queueing.events import START, Cursor, EndReason, JobResult, JobState, JobStatus, StreamEvent
from headway.queueing.ids import JobId, check_key, lane_of, new_key
from headway.queueing.intake import seed_of
from headway.queueing.memory_lane import Record
from headway.queueing.memory_store import MemoryStore
from headway.queueing.messages import Job, encode_job
from headway.queueing.protocol import (
    Cancelled,
    Claim,
    DeadLetter,
    Emit,
    Fenced,
    Finish,
    LaneDepth,
    Reaped,
    Submitted,
    Wakeup,
    WorkerCard,
)
from headway.queueing.results import events_of
from headway.queueing.settings import DEFAULTS, READ_LIMIT, QueueSettings


class MemoryQueue:
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
        self._settings = settings
        self._clock = clock
        self._rng = rng or SystemRandom()
        self._store = MemoryStore(settings, clock, self._rng)
        self._cards: dict[str, tuple[WorkerCard, int]] = {}
        self._models: set[str] = set()
        self._cancels: dict[str, list[str]] = {}

    # -- producers ------------------------------------------------------------------------------------

    async def submit(self, job: Job, *, key: str | None = None) -> Submitted:
        """See ``Queue.submit``."""
        return await self.submit_body(job.model, encode_job(job), key=key)

    async def submit_body(self, model: str, body: bytes, *, key: str | None = None) -> Submitted:
        """Accept a body as raw producers post it, after the cheap checks only."""
        key = new_key(self._clock, self._rng) if key is None else check_key(key)
        return self._store.accept(model, key, body)

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

    async def cancel(self, job_id: str, reason: str) -> Cancelled:
        """See ``Queue.cancel``."""
        record = self._store.record(job_id)
        if record.state is JobState.FINISHED:
            return Cancelled.FINISHED
        if record.cancel_reason is None:
            record.cancel_reason = reason
        if record.state is JobState.QUEUED:
            self._store.lane(JobId.parse(job_id).lane).remove(record)
            self._store.end(record, EndReason.CANCELLED)
            return Cancelled.QUEUED
        worker = record.worker or ""
        self._cancels.setdefault(worker, []).append(job_id)
        self._store.bells.ring(f"worker:{worker}")
        return Cancelled.RUNNING

    async def status(self, job_id: str) -> JobStatus:
        """See ``Queue.status``."""
        record = self._store.record(job_id)
        return JobStatus(
            job_id=record.job_id,
            model=record.model,
            tenant=record.tenant,
            priority=record.priority,
            state=record.state,
            committed_tokens=record.cursor.tokens,
            attempts=record.attempts,
            worker=record.worker,
            created_ms=record.created_ms,
            started_ms=record.started_ms,
            finished_ms=record.finished_ms,
            deadline_ms=record.deadline_ms,
            cancel_reason=record.cancel_reason,
            reason=record.end.reason if record.end else None,
            error=record.error,
            on_disconnect=record.on_disconnect,
            metadata=record.metadata,
        )

    # -- consumers ------------------------------------------------------------------------------------

    async def claim(self, model: str, worker_id: str, room: int) -> tuple[Claim, ...]:
        """See ``Queue.claim``."""
        lane = self._store.lane(lane_of(model))
        claims: list[Claim] = []
        while len(claims) < room and (record := lane.take(self._store.now_ms(), self._settings)) is not None:
            if not self._store.end_if_due(record):
                claims.append(self._open(record, worker_id))
        return tuple(claims)

    def _open(self, record: Record, worker_id: str) -> Claim:
        now = self._store.now_ms()
        record.state = JobState.RUNNING
        record.token = f"{self._rng.getrandbits(128):032x}"
        record.epoch += 1
        record.worker = worker_id
        record.started_ms = record.started_ms or now
        record.lease_ms = now + int(self._settings.lease_seconds * 1000)
        return Claim(
            job_id=record.job_id,
            token=record.token,
            epoch=record.epoch,
            attempts=record.attempts,
            body=record.body,
            committed=tuple(record.committed),
            seed=seed_of(record.body, record.seed),
            created_ms=record.created_ms,
            deadline_ms=record.deadline_ms,
            now_ms=now,
            cancel_reason=record.cancel_reason,
        )

    async def emit(self, emits: Sequence[Emit]) -> tuple[Fenced, ...]:
        """See ``Queue.emit``."""
        return tuple(self._emit(emit) for emit in emits)

    def _emit(self, emit: Emit | Finish) -> Fenced:
        record = self._store.find(emit.job_id)
        if record is None or not record.is_owned_by(emit.token):
            return Fenced.LOST
        for event in emit.entries:
            if event.cursor > record.cursor:
                record.committed.append(event)
        self._store.bells.ring(emit.job_id)
        return Fenced.CANCELLED if record.cancel_reason is not None else Fenced.OK

    async def finish(self, finishes: Sequence[Finish]) -> tuple[Fenced, ...]:
        """See ``Queue.finish``."""
        return tuple(self._finish(finish) for finish in finishes)

    def _finish(self, finish: Finish) -> Fenced:
        record = self._store.find(finish.job_id)
        if record is None or finish.token != record.token or record.state is JobState.QUEUED:
            return Fenced.LOST
        if record.state is JobState.RUNNING:
            self._emit(finish)
            self._store.finish(record, finish)
        return Fenced.OK

    async def renew(self, claims: Sequence[tuple[str, str]]) -> tuple[Fenced, ...]:
        """See ``Queue.renew``."""
        until = self._store.now_ms() + int(self._settings.lease_seconds * 1000)
        return tuple(self._renew(job_id, token, until) for job_id, token in claims)

    def _renew(self, job_id: str, token: str, until_ms: int) -> Fenced:
        record = self._store.find(job_id)
        if record is None or not record.is_owned_by(token):
            return Fenced.LOST
        record.lease_ms = until_ms
        return Fenced.CANCELLED if record.cancel_reason is not None else Fenced.OK

    async def release(self, claims: Sequence[tuple[str, str]]) -> tuple[Fenced, ...]:
        """See ``Queue.release``."""
        return tuple(self._release(job_id, token) for job_id, token in claims)

    def _release(self, job_id: str, token: str) -> Fenced:
        record = self._store.find(job_id)
        if record is None or not record.is_owned_by(token):
            return Fenced.LOST
        self._store.requeue(record)
        return Fenced.OK

    async def wait(self, model: str, worker_id: str, *, for_work: bool, timeout_seconds: float) -> Wakeup:
        """See ``Queue.wait``."""
        lane_name = lane_of(model)
        names = [f"worker:{worker_id}"] + ([f"work:{lane_name}"] if for_work else [])
        if not self._has_work(lane_name, for_work=for_work) and not self._cancels.get(worker_id):
            await self._store.bells.wait(*names, timeout_seconds=timeout_seconds)
        cancelled = tuple(self._cancels.pop(worker_id, ()))
        return Wakeup(self._has_work(lane_name, for_work=for_work), cancelled)

    def _has_work(self, lane_name: str, *, for_work: bool) -> bool:
        return for_work and self._store.lane(lane_name).queued_jobs > 0

    async def heartbeat(self, card: WorkerCard, *, ttl_seconds: float) -> None:
        """See ``Queue.heartbeat``."""
        self._cards[card.worker_id] = (card, self._store.now_ms() + int(ttl_seconds * 1000))
        self._models.add(card.model)

    async def farewell(self, worker_id: str) -> None:
        """See ``Queue.farewell``."""
        self._cards.pop(worker_id, None)

    # -- anyone ---------------------------------------------------------------------------------------

    async def workers(self) -> tuple[WorkerCard, ...]:
        """See ``Queue.workers``."""
        now = self._store.now_ms()
        return tuple(card for _, (card, until) in sorted(self._cards.items()) if until > now)

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

    async def depth(self, model: str) -> LaneDepth:
        """See ``Queue.depth``."""
        return self._store.lane(lane_of(model)).depth()

    async def dead_letters(self, model: str, limit: int = 100) -> tuple[DeadLetter, ...]:
        """See ``Queue.dead_letters``."""
        return tuple(reversed(self._store.lane(lane_of(model)).dead))[:limit]

    async def check_server(self) -> tuple[str, ...]:
        """See ``Queue.check_server``."""
        return ("the queue lives in this process's memory: its jobs end with the process",)

    async def close(self) -> None:
        """See ``Queue.close``."""
        self._store.bells.ring_all()
