"""The fair policy: who starts next, in three layers that are never mixed into one score.

class     strict bands, best first; a tenant that its band has left without a start for the age limit goes
          ahead of the bands, oldest first
tenant    inside a band by virtual time (``fairness.py``); tenants within a quantum of the first are equals,
          and among them the longer cached prefix goes first, but nobody is displaced for ever
request   inside a tenant by slack: deadline less predicted service, patience instead where there is none
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Final

from headway.engine.band import Band, TenantQueue
from headway.engine.fairness import VirtualTimes
from headway.engine.line import Rank
from headway.engine.request import Request

MOST_DISPLACED: Final = 8
"""How often tenants with a longer cached prefix may go before the first one."""
WINDOW: Final = 16
"""Tenants whose prefixes are compared."""


class FairPolicy:
    """Fair by class, tenant and deadline; see the module.

    ``quantum_tokens`` (Q): service, in tokens per weight, within which tenants are equals; the price of
    locality, about one long prompt. ``patience_seconds``: the slack of a request without a deadline, so that
    a stream of urgent ones of its own tenant cannot hold it up for ever. Raises ValueError for nonsense.
    """

    has_classes = True

    def __init__(
        self,
        *,
        weights: Mapping[str, float] | None = None,
        age_limit_seconds: float = 60.0,
        quantum_tokens: float = 1024.0,
        patience_seconds: float = 60.0,
    ) -> None:
        if not (0.0 < age_limit_seconds < math.inf and 0.0 < patience_seconds < math.inf):
            raise ValueError(
                f"age_limit_seconds is {age_limit_seconds}, patience_seconds {patience_seconds}: "
                "give more than 0"
            )
        if not 0.0 <= quantum_tokens < math.inf:
            raise ValueError(f"quantum_tokens is {quantum_tokens}: give at least 0")
        self._weights = dict(weights or {})
        self._age_limit_seconds = age_limit_seconds
        self._quantum_tokens = quantum_tokens
        self._patience_seconds = patience_seconds
        self._bands: defaultdict[int, Band] = defaultdict(lambda: Band(self._weights))
        self._aged: Request | None = None
        self._started_aged = False
        self.waiting = 0

    def __iter__(self) -> Iterator[Request]:
        """All that wait, in no promised order."""
        return (r for band in self._bands.values() for queue in band.order for r in queue.line)

    @property
    def next_due(self) -> float | None:
        """It never waits for the clock alone."""
        return None

    def set_weight(self, tenant: str, weight: float) -> None:
        """Service of a tenant counts by this weight, above 0, from now on."""
        self._weights[tenant] = weight
        for band in self._bands.values():
            band.times.set_weight(tenant, weight)
            if tenant in band.queues:
                band.place(band.queues[tenant])

    def times(self, priority: int) -> VirtualTimes:
        """The accounts of a class."""
        return self._bands[priority].times

    # -- Requests come and go --------------------------------------------------------------------------------

    def join(self, request: Request) -> None:
        """It may be scheduled from now on: its tenant is active."""
        self._bands[request.spec.priority].join(request.spec.tenant)

    def leave(self, request: Request) -> None:
        """It ended, or is held: what it owed is not owed any more."""
        band = self._bands[request.spec.priority]
        queue = band.queues[request.spec.tenant]
        self._forgive(queue, request, request.debt)
        band.place(queue)
        band.leave(request.spec.tenant)

    def enqueue(self, request: Request) -> None:
        """Let it wait."""
        spec = request.spec
        request.rank = self._rank(request)
        band = self._bands[spec.priority]
        queue = band.queues[spec.tenant]
        self._forgive(queue, request, request.debt)  # it may come back from a preemption
        if not len(queue.line):
            queue.since = max(queue.since, spec.arrival_seconds)
        queue.line.add(request.rank, request)
        self.waiting += 1
        band.place(queue)

    def _rank(self, request: Request) -> Rank:
        spec = request.spec
        due = spec.arrival_seconds + self._patience_seconds
        if spec.deadline_seconds is not None:
            due = min(due, spec.deadline_seconds - request.service_seconds)
        # What was preempted goes first in its tenant: part of its work is done.
        return (request.preemptions == 0, due, spec.arrival_seconds, request.serial)

    def withdraw(self, request: Request) -> None:
        """It waits no more; one that does not wait is ignored."""
        band = self._bands[request.spec.priority]
        queue = band.queues.get(request.spec.tenant)
        if queue is not None and queue.line.discard(request.rank):
            self.waiting -= 1
            band.place(queue)

    def start(self, request: Request, now: float, cost: float) -> None:
        """It runs from now on; ``cost`` is what its prefill will be charged, so that it counts at once."""
        band = self._bands[request.spec.priority]
        queue = band.queues[request.spec.tenant]
        first = band.order.first()
        if first is not None and first[1] is not queue:
            first[1].displaced += 1
        queue.displaced = 0
        queue.since = now
        request.debt = cost
        queue.account.debt += cost
        self._started_aged = request is self._aged
        request.is_pinned = request.is_pinned or self._started_aged
        self.withdraw(request)

    def over_share(self, request: Request) -> float:
        """How far its tenant's position is above the smallest of its class."""
        times = self._bands[request.spec.priority].times
        account = times.find(request.spec.tenant)
        # Forgotten while its only request is held: it was at the floor.
        return 0.0 if account is None else account.position - times.floor()

    def share(self, request: Request) -> float:
        """Its tenant's weight among those of its class that have live requests."""
        queues = self._bands[request.spec.priority].queues
        own = queues[request.spec.tenant].account.weight
        return own / sum([queue.account.weight for queue in queues.values()])

    def ahead(self, request: Request, work: Callable[[Request], float]) -> float:
        """All of better classes, and of its own tenant what is more urgent, stretched by its share."""
        spec = request.spec
        better = [band for priority, band in self._bands.items() if priority < spec.priority]
        total = sum(work(other) for band in better for queue in band.order for other in queue.line)
        band = self._bands[spec.priority]
        own = band.queues.get(spec.tenant)
        if own is None:
            return total
        rank = self._rank(request)
        mine = sum(work(other) for other in takewhile(lambda other: other.rank < rank, own.line))
        return total + mine / self.share(request)

    def charge(self, request: Request, cost: float) -> None:
        """Book what a step computed of it; also after it ended, for the step that ran meanwhile."""
        spec = request.spec
        band = self._bands[spec.priority]
        if request.debt:
            queue = band.queues.get(spec.tenant)
            if queue is not None:
                self._forgive(queue, request, min(cost, request.debt))
        band.times.charge(spec.tenant, cost)

    # -- Who goes first --------------------------------------------------------------------------------------

    def candidates(self, now: float, cached_tokens: Callable[[Request], int]) -> Iterator[Request]:
        """What waits, first to start first; one just yielded may be started before the next is asked for."""
        looked: dict[TenantQueue, int] = {}
        bands = [self._bands[priority] for priority in sorted(self._bands)]
        bands = [band for band in bands if len(band.order)]
        aged = self._find_aged(bands[1:], now)
        if aged is not None:
            self._aged = request = aged.line[0]
            yield request
            looked[aged] = int(request.table is None)
        self._aged = None
        for band in bands:
            while (queue := self._pick(band, looked, cached_tokens)) is not None:
                request = queue.line[looked.get(queue, 0)]
                yield request
                if request.table is None:
                    looked[queue] = looked.get(queue, 0) + 1

    def sort(self, started: Iterable[Request]) -> list[Request]:
        """Requests in the middle of their prefill, first to be served first."""

        def key(request: Request) -> tuple[int, float, Rank]:
            band = self._bands[request.spec.priority]
            return request.spec.priority, band.times[request.spec.tenant].position, request.rank

        return sorted(started, key=key)

    def _find_aged(self, bands: list[Band], now: float) -> TenantQueue | None:
        """The queue that waited longest over the age limit in a band that is not served.

        The best band that waits needs none: virtual time serves each of its tenants in turn. Never twice in a
        row, or an endless aged line would take the better bands' place for good.
        """
        if self._started_aged:
            return None
        fronts = [first for band in bands if (first := band.ages.first()) is not None]
        if not fronts:
            return None
        (since, _), queue = min(fronts, key=lambda front: front[0])
        return queue if now - since >= self._age_limit_seconds else None

    def _pick(
        self, band: Band, looked: dict[TenantQueue, int], cached_tokens: Callable[[Request], int]
    ) -> TenantQueue | None:
        """The queue to look at next: the longest cached prefix within a quantum of the first position."""
        first: TenantQueue | None = None
        chosen: TenantQueue | None = None
        longest, limit, compared = -1, 0.0, 0
        place = -1
        while (queue := band.at(place := place + 1)) is not None:
            skipped = looked.get(queue, 0)
            if skipped >= len(queue.line):
                continue
            if first is None:
                first, limit = queue, queue.account.position + self._quantum_tokens
                if queue.displaced >= MOST_DISPLACED or self._quantum_tokens <= 0.0:
                    return queue
            elif queue.account.position > limit or compared >= WINDOW:
                break
            compared += 1
            cached = cached_tokens(queue.line[skipped])
            if cached > longest:
                chosen, longest = queue, cached
        return chosen

    @staticmethod
    def _forgive(queue: TenantQueue, request: Request, cost: float) -> None:
        request.debt -= cost
        queue.account.debt = max(0.0, queue.account.debt - cost)
