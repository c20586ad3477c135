"""The consumers' side of MemoryQueue: what workers call."""

from __future__ import annotations

from collections.abc import Sequence

from headway.queueing.claims import Claim, Emit, Fenced, Finish
from headway.queueing.events import JobState
from headway.queueing.ids import lane_of
from headway.queueing.intake import seed_of
from headway.queueing.memory_record import Record
from headway.queueing.memory_side import MemorySide
from headway.queueing.messages import Priority, down_to
from headway.queueing.protocol import Wakeup
from headway.queueing.worker_card import WorkerCard


class MemoryConsumerSide(MemorySide):
    """What workers call."""

    async def claim(
        self, model: str, worker_id: str, room: int, *, least: Priority = Priority.BATCH
    ) -> tuple[Claim, ...]:
        """See ``Queue.claim``."""
        lane_name = lane_of(model)
        claims: list[Claim] = []
        while len(claims) < room and (record := self._store.take(lane_name, worker_id, least)) is not None:
            claims.append(self._claim(record))
        return tuple(claims)

    def _claim(self, record: Record) -> Claim:
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
            now_ms=self._store.now_ms(),
            cancel_reason=record.cancel_reason,
        )

    async def emit(self, emits: Sequence[Emit]) -> tuple[Fenced, ...]:
        """See ``Queue.emit``."""
        return tuple(self._emit(emit) if emit.entries else Fenced.OK for emit in emits)

    def _emit(self, emit: Emit | Finish) -> Fenced:
        record = self._store.find(emit.job_id)
        if record is None or not record.is_owned_by(emit.token):
            return Fenced.LOST
        if len(record.committed) < emit.entries_before:
            record.token, record.lease_ms = "", 0
            return Fenced.LOST
        for event in emit.entries:
            if event.cursor > record.cursor:
                record.committed.append(event)
                record.first_token_ms = record.first_token_ms or self._store.now_ms()
        self._store.bells.ring(emit.job_id)
        return Fenced.OK

    async def finish(self, finishes: Sequence[Finish]) -> tuple[Fenced, ...]:
        """See ``Queue.finish``."""
        return tuple(self._finish(finish) for finish in finishes)

    def _finish(self, finish: Finish) -> Fenced:
        record = self._store.find(finish.job_id)
        if record is None or finish.token != record.token or record.state is JobState.QUEUED:
            return Fenced.LOST
        if record.state is JobState.RUNNING:
            if self._emit(finish) is Fenced.LOST:
                return Fenced.LOST
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
        self._store.requeue(record, "released")
        return Fenced.OK

    async def wait(
        self, model: str, worker_id: str, *, for_work: Priority | None, timeout_seconds: float
    ) -> Wakeup:
        """See ``Queue.wait``."""
        lane_name = lane_of(model)
        names = [f"worker:{worker_id}"] + ([] if for_work is None else [f"work:{lane_name}"])
        if not self._has_work(lane_name, for_work) and not self._cancels.get(worker_id):
            await self._store.bells.wait(*names, timeout_seconds=timeout_seconds)
        cancelled = tuple(self._cancels.pop(worker_id, ()))
        return Wakeup(self._has_work(lane_name, for_work), cancelled)

    def _has_work(self, lane_name: str, for_work: Priority | None) -> bool:
        if for_work is None:
            return False
        lane = self._store.lane(lane_name)
        return any(lane.bands[band].jobs or lane.returned[band] for band in down_to(for_work))

    async def heartbeat(self, card: WorkerCard, *, ttl_seconds: float) -> None:
        """See ``Queue.heartbeat``."""
        now = self._store.now_ms()
        self._cards[card.worker_id] = (card, now, now + int(ttl_seconds * 1000))
        self._models.add(card.model)
        self._lane(card.model).report(
            card.worker_id, card.tokens_per_second, self._store.now_ms(), int(ttl_seconds * 1000)
        )

    async def farewell(self, worker_id: str) -> None:
        """See ``Queue.farewell``."""
        self._cards.pop(worker_id, None)
