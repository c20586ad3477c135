"""Whose constraint is checked next: tenants take turns, and none of them ever has every thread."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import suppress

from headway.gateway.errors import TurnsFullError


class CheckTurns:
    """Hands out ``at_once`` places, two or more, from one event loop.

    A check cannot be broken off. So a tenant has all places but one at most: whoever comes beside a single
    tenant, whatever it posts, begins at once; beside several, after those whose turn is before theirs.
    """

    def __init__(self, at_once: int, *, most_waiting: int) -> None:
        """``most_waiting``: checks of one tenant that may wait."""
        self._at_once = at_once
        self._most_waiting = most_waiting
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By tenant, the one whose turn is next first."""

    async def take(self, tenant: str) -> None:
        """Wait for a place, which ``give_back`` ends; raises TurnsFullError."""
        waiting = self._waiting.setdefault(tenant, deque())
        if len(waiting) >= self._most_waiting:
            raise TurnsFullError
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        self._begin_next()
        try:
            await turn
        except asyncio.CancelledError:
            self._leave(tenant, turn)
            raise

    def give_back(self, tenant: str) -> None:
        """A check has ended: the next may begin."""
        self._running[tenant] -= 1
        self._running += Counter()  # keeps no tenant that has none
        self._begin_next()

    def is_running(self, tenant: str) -> bool:
        """Whether one of the tenant's own checks has a place."""
        return self._running[tenant] > 0

    def _leave(self, tenant: str, turn: asyncio.Future[None]) -> None:
        """Its request is gone: it waits no longer, or hands on a place that it was just given."""
        if not turn.cancelled():
            self.give_back(tenant)
            return
        waiting = self._waiting.get(tenant, deque())
        with suppress(ValueError):  # passed over meanwhile
            waiting.remove(turn)
        if not waiting:
            self._waiting.pop(tenant, None)

    def _begin_next(self) -> None:
        while self._running.total() < self._at_once and (tenant := self._next_tenant()) is not None:
            waiting = self._waiting.pop(tenant)
            turn = waiting.popleft()
            if not turn.cancelled():
                self._running[tenant] += 1
                turn.set_result(None)
            if waiting:
                self._waiting[tenant] = waiting  # behind the others

    def _next_tenant(self) -> str | None:
        most = self._at_once - 1
        return next((tenant for tenant in self._waiting if self._running[tenant] < most), None)
