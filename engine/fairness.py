"""Who got how much: weighted virtual times per tenant (VTC, Sheng et al., OSDI'24).

    time_k += cost / weight_k        the tenant with the smallest time is served next
    lift: on return from idle        time_k = max(time_k, smallest time of the active tenants)

Active are all tenants with a live request, also those that only run: a newcomer gets no burst before them.
When nobody is active, the last one to leave has set the floor. Times never fall, whatever happens.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from itertools import count
from typing import Final

MOST_IDLE: Final = 4096
"""Idle accounts kept; beyond it the least served are forgotten, who gain least by it. Tenants come and go
without end, and one of great weight that never pauses keeps the floor below all of them."""


class Account:
    """One tenant's service. ``time`` never falls; ``debt`` is work started and not yet charged."""

    __slots__ = ("debt", "is_in_active", "is_in_idle", "live", "tenant", "time", "weight")

    def __init__(self, tenant: str, weight: float) -> None:
        self.tenant = tenant
        self.weight = weight
        self.time = 0.0
        self.debt = 0.0
        self.live = 0
        """Its live requests."""
        self.is_in_active = False
        self.is_in_idle = False

    @property
    def position(self) -> float:
        """Its time once everything that it has started is paid: the order of service."""
        return self.time + self.debt / self.weight


class VirtualTimes:
    """The accounts of one class. ``weights``: by tenant, 1 for those not named; may change at any time."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._accounts: dict[str, Account] = {}
        self._floor = 0.0
        # Each account is at most once in each heap, with a time that it had then.
        self._active: list[tuple[float, int, Account]] = []
        self._idle: list[tuple[float, int, Account]] = []
        self._serial = count()

    def __len__(self) -> int:
        """Accounts kept; idle ones go once the lift would give them the same time, or there are too many."""
        return len(self._accounts)

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._accounts

    def __getitem__(self, tenant: str) -> Account:
        return self._accounts[tenant]

    def find(self, tenant: str) -> Account | None:
        """The account of a tenant, None once it is forgotten."""
        return self._accounts.get(tenant)

    def join(self, tenant: str) -> Account:
        """One more live request of a tenant; lifts its time if it was idle."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = Account(tenant, self._weights.get(tenant, 1.0))
        if account.live == 0:
            account.time = max(account.time, self.floor())
        account.live += 1
        if not account.is_in_active:
            account.is_in_active = True
            heapq.heappush(self._active, (account.time, next(self._serial), account))
        return account

    def leave(self, tenant: str) -> None:
        """One live request less."""
        account = self._accounts[tenant]
        account.live -= 1
        if account.live:
            return
        account.debt = 0.0
        if self._smallest() is None:
            self._floor = max(self._floor, account.time)
        if not account.is_in_idle:
            account.is_in_idle = True
            heapq.heappush(self._idle, (account.time, next(self._serial), account))
        self._forget()

    def charge(self, tenant: str, cost: float) -> None:
        """Book ``cost`` of service that a tenant got; also one that was forgotten while its last step ran."""
        account = self._accounts.get(tenant)
        if account is None:
            self.join(tenant)
            account = self._accounts[tenant]
            account.time += cost / account.weight
            self.leave(tenant)
        else:
            account.time += cost / account.weight

    def set_weight(self, tenant: str, weight: float) -> None:
        """From now on its service counts by the new weight; what it had stays as it was counted."""
        if tenant in self._accounts:
            self._accounts[tenant].weight = weight

    def floor(self) -> float:
        """What a tenant that comes now is lifted to; never falls."""
        smallest = self._smallest()
        if smallest is not None:
            self._floor = max(self._floor, smallest)
        return self._floor

    def _smallest(self) -> float | None:
        """The smallest time of an active tenant. Times only grow, so stale entries are too small."""
        heap = self._active
        while heap:
            time, serial, account = heap[0]
            if account.live == 0:
                heapq.heappop(heap)
                account.is_in_active = False
            elif time != account.time:
                heapq.heapreplace(heap, (account.time, serial, account))
            else:
                return time
        return None

    def _forget(self) -> None:
        floor = self.floor()
        while self._idle and (self._idle[0][0] <= floor or len(self._idle) > MOST_IDLE):
            time, serial, account = heapq.heappop(self._idle)
            account.is_in_idle = False
            if account.live:
                continue
            is_one_too_many = account.time == time and len(self._idle) >= MOST_IDLE
            if account.time <= floor or is_one_too_many:
                del self._accounts[account.tenant]
            else:  # charged since, for a step that ran while its last request ended
                account.is_in_idle = True
                heapq.heappush(self._idle, (account.time, serial, account))
