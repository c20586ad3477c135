"""What operators see and set on a MemoryQueue: depth, who waits, what runs, ends, dead letters, weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from itertools import islice

from headway.queueing.backlog import EndedJob, Settlement, TenantBacklog
from headway.queueing.day_usage import DayUsage
from headway.queueing.events import JobState, JobStatus
from headway.queueing.ids import check_entry_id
from headway.queueing.memory_record import Record
from headway.queueing.memory_side import MemorySide
from headway.queueing.messages import Priority
from headway.queueing.protocol import DeadLetter, LaneDepth


class MemoryListingSide(MemorySide):
    """What operators call."""

    async def status(self, job_id: str) -> JobStatus:
        """See ``Queue.status``."""
        return self._store.record(job_id).status()

    async def depth(self, model: str) -> LaneDepth:
        """See ``Queue.depth``."""
        return self._lane(model).depth(self._store.now_ms())

    async def dead_letters(self, model: str, limit: int = 100) -> tuple[DeadLetter, ...]:
        """See ``Queue.dead_letters``."""
        return tuple(letter for letter, _ in islice(reversed(self._lane(model).dead), limit))

    async def purge(self, model: str, entry_ids: Sequence[str] | None = None) -> int:
        """See ``Queue.purge``."""
        dead = self._lane(model).dead
        ids = None if entry_ids is None else set(map(check_entry_id, entry_ids))
        kept = [buried for buried in dead if ids is not None and buried[0].entry_id not in ids]
        removed = len(dead) - len(kept)
        dead.clear()
        dead.extend(kept)
        return removed

    async def set_weights(self, model: str, weights: Mapping[str, float]) -> None:
        """See ``Queue.set_weights``."""
        self._lane(model).weights = dict(weights)

    async def tenants(self, model: str) -> tuple[TenantBacklog, ...]:
        """See ``Queue.tenants``."""
        return self._lane(model).tenants()

    async def waiting_jobs(
        self, model: str, *, tenant: str | None = None, limit: int = 100
    ) -> tuple[JobStatus, ...]:
        """See ``Queue.waiting_jobs``."""
        lane = self._lane(model)
        waiting: list[Record] = []
        for priority in Priority:
            band = lane.bands[priority]
            waiting += lane.returned[priority]
            waiting += (record for name in band.next_tenants() for record in band.jobs_of(name))
        chosen = (record for record in waiting if tenant in {None, record.tenant})
        return tuple(record.status() for record in islice(chosen, limit))

    async def running_jobs(self, model: str, limit: int = 100) -> tuple[JobStatus, ...]:
        """See ``Queue.running_jobs``."""
        records = self._lane(model).records.values()
        running = [record for record in records if record.state is JobState.RUNNING]
        running.sort(key=lambda record: (record.lease_ms, record.job_id))
        return tuple(record.status() for record in running[:limit])

    async def recent_jobs(self, model: str, limit: int = 100) -> tuple[EndedJob, ...]:
        """See ``Queue.recent_jobs``."""
        return tuple(islice(reversed(self._lane(model).recent), limit))

    async def usage(
        self, model: str, days: Sequence[date], tenant: str | None = None
    ) -> tuple[DayUsage, ...]:
        """See ``Queue.usage``."""
        used = self._lane(model).used
        rows = (row for day in days for row in used.rows(model, day))
        return tuple(row for row in rows if tenant in {None, row.tenant})

    async def settlements(self, model: str, limit: int = 100) -> tuple[Settlement, ...]:
        """See ``Queue.settlements``."""
        return tuple(islice(self._lane(model).settlements.values(), limit))

    async def settled(self, model: str, entry_ids: Sequence[str]) -> None:
        """See ``Queue.settled``."""
        for entry_id in entry_ids:
            self._lane(model).settlements.pop(entry_id, None)
