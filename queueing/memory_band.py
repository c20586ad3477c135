"""One band of a lane in memory: its tenants' backlogs, and whose turn it is.

A start-time fair queue (Goyal, Vin and Cheng 1996; with several jobs in service: Jin, Chase and Kaur 2004),
as in lua/books.lua: the smallest virtual time goes next, and its value before the charge is the band's floor.
Who begins to wait starts at the floor at least, so idling earns nothing.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from itertools import count
from typing import Final

from headway.queueing.memory_record import Record

FORGET_MS: Final = 3_600_000
"""A tenant that has not waited for so long starts at the floor, like a new one."""

_Entry = tuple[float, int, Record]


class Band:
    """The tenants of one class. A job that came back is in ``returned`` and goes first."""

    def __init__(self) -> None:
        self.floor = 0.0
        self.tokens: dict[str, int] = {}
        """Estimated, of what waits, by tenant."""
        self._times: dict[str, float] = {}
        self._changed_ms: dict[str, int] = {}
        self._queues: dict[str, list[_Entry]] = {}
        self._serial = count()
        self._serials: dict[str, int] = {}

    @property
    def jobs(self) -> int:
        """How many jobs wait."""
        return sum(map(len, self._queues.values()))

    def jobs_of(self, tenant: str) -> tuple[Record, ...]:
        """A tenant's waiting jobs in their order."""
        return tuple(entry[2] for entry in self._queues.get(tenant, ()))

    def tokens_before(self, tenant: str, place: float) -> float:
        """Estimated tokens of a tenant's jobs that go before a new one with this place."""
        queue = self._queues.get(tenant, [])
        earlier = bisect_right(queue, place, key=lambda entry: entry[0])
        return self.tokens[tenant] * earlier / len(queue) if queue else 0.0

    def next_job(self, tenant: str) -> Record:
        """The first of a waiting tenant's jobs."""
        return self._queues[tenant][0][2]

    def next_tenants(self, limit: int | None = None) -> list[str]:
        """Tenants with waiting jobs, the next one first."""
        by_turn = [(self._times[tenant], tenant) for tenant in self._queues]
        return [tenant for _, tenant in heapq.nsmallest(limit or len(by_turn), by_turn)]

    def time_of(self, tenant: str) -> float:
        """A waiting tenant's virtual time."""
        return self._times[tenant]

    def add(self, record: Record, now_ms: int) -> None:
        """Put a job into its tenant's backlog, the earliest deadline first."""
        tenant = record.tenant
        if tenant not in self._queues:
            self._queues[tenant] = []
            self._times[tenant] = max(self._times.get(tenant, self.floor), self.floor)
            self._changed_ms[tenant] = now_ms
        self._serials[record.job_id] = next(self._serial)
        insort(self._queues[tenant], self._entry(record))
        self.tokens[tenant] = self.tokens.get(tenant, 0) + record.cost

    def _entry(self, record: Record) -> _Entry:
        return record.place, self._serials[record.job_id], record

    def remove(self, record: Record, now_ms: int) -> None:
        """Take a waiting job out."""
        queue = self._queues[record.tenant]
        del queue[bisect_left(queue, self._entry(record))]
        del self._serials[record.job_id]
        self.tokens[record.tenant] -= record.cost
        if not queue:
            del self._queues[record.tenant], self.tokens[record.tenant]
            self._changed_ms[record.tenant] = now_ms

    def start(self, tenant: str) -> None:
        """The tenant's turn has come, in order: nobody begins behind it from now on."""
        self.floor = max(self.floor, self._times[tenant])

    def charge(self, tenant: str, tokens: float, weight: float) -> None:
        """Charge for service, or give back; a tenant that was forgotten owes nothing."""
        if tenant in self._times:
            self._times[tenant] += tokens / weight

    @property
    def known_tenants(self) -> Iterable[str]:
        """Tenants whose virtual time is kept."""
        return self._times.keys()

    def forget(self, now_ms: int) -> None:
        """Forget tenants that have not waited for long."""
        for tenant, changed_ms in list(self._changed_ms.items()):
            if tenant not in self._queues and changed_ms <= now_ms - FORGET_MS:
                del self._times[tenant], self._changed_ms[tenant]
