"""The tenants of one class: what waits of each, in the order of their accounts and of their age."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from headway.engine.fairness import Account, VirtualTimes
from headway.engine.line import Line, Rank
from headway.engine.request import Request


class TenantQueue:
    """What waits of one tenant in one class, least slack first."""

    __slots__ = ("account", "displaced", "line", "place", "serial", "since")

    def __init__(self, account: Account, serial: int) -> None:
        self.account = account
        self.serial = serial
        self.line: Line[Request] = Line()
        self.displaced = 0
        self.since = float("-inf")
        """When it last started a request, or since when something waits in it."""
        self.place: tuple[Rank, Rank] | None = None
        """Its ranks in the band's two lines while something waits in it."""


class Band:
    """The tenants of one class. A queue exists while its tenant has a live request here."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.times = VirtualTimes(weights)
        self.queues: dict[str, TenantQueue] = {}
        self.order: Line[TenantQueue] = Line()
        """Queues in which something waits, by the position of their account."""
        self.ages: Line[TenantQueue] = Line()
        """The same, by age."""
        self._serial = count()

    def join(self, tenant: str) -> None:
        """One more live request."""
        account = self.times.join(tenant)
        if tenant not in self.queues:
            self.queues[tenant] = TenantQueue(account, next(self._serial))

    def leave(self, tenant: str) -> None:
        """One live request less; it waits no more."""
        self.times.leave(tenant)
        if self.queues[tenant].account.live == 0:
            del self.queues[tenant]

    def place(self, queue: TenantQueue) -> None:
        """Put a queue where its account and its age belong, or nowhere when nothing waits in it."""
        if queue.place is not None:
            self.order.discard(queue.place[0])
            self.ages.discard(queue.place[1])
            queue.place = None
        if len(queue.line):
            queue.place = ((queue.account.position, queue.serial), (queue.since, queue.serial))
            self.order.add(queue.place[0], queue)
            self.ages.add(queue.place[1], queue)

    def at(self, place: int) -> TenantQueue | None:
        """The queue at a place of the order, once all up to it stand where they belong; None: past the end.

        Positions only grow between two calls of ``place``, so a queue that was charged stands too far in
        front, and only those that are looked at have to move.
        """
        while place < len(self.order):
            queue = self.order[place]
            if queue.place is not None and queue.place[0][0] >= queue.account.position:
                return queue
            self.place(queue)
        return None
