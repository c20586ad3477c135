"""Who goes first. A policy owns the order of the waiting requests and nothing else.

The scheduler asks for candidates lazily, so a step pays for the few it looks at, not for all that wait.
``fair`` (``fair.py``) is what a service should use; the others are simple, and baselines for experiments.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from typing import Final, Protocol

from headway.engine.fair import FairPolicy
from headway.engine.line import Line, Rank
from headway.engine.request import Request


class Policy(Protocol):
    """The order in which requests start, and share the prefill budget once they have.

    Calls for one request: ``join``, then ``enqueue`` / ``start`` / ``withdraw`` as it waits and runs, then
    ``leave``; a hold leaves and joins again. Where something is given here, a fixed order needs no more.
    """

    has_classes: bool = False
    """Whether a better class that waits may take the place of a lower one that runs."""

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        ...

    @property
    def next_due(self) -> float | None:
        """When candidates may come without any call; None: never."""
        return None

    def __iter__(self) -> Iterator[Request]:
        """All that wait, for a recount."""
        ...

    def join(self, request: Request) -> None:  # noqa: ARG002 -- nothing to do in a fixed order
        """It may be scheduled from now on."""
        return

    def leave(self, request: Request) -> None:  # noqa: ARG002 -- nothing to do in a fixed order
        """It ended or is on hold; it does not wait."""
        return

    def enqueue(self, request: Request) -> None:
        """Let it wait."""
        ...

    def withdraw(self, request: Request) -> None:
        """It waits no more: held or ended. One that does not wait is ignored."""
        ...

    def start(self, request: Request, now: float, cost: float) -> None:
        """It runs from now on; its prefill will be charged ``cost``."""
        ...

    def set_weight(self, tenant: str, weight: float) -> None:  # noqa: ARG002 -- nothing to do in a fixed order
        """A tenant's service counts by this weight (above 0) from now on."""
        return

    def over_share(self, request: Request) -> float:  # noqa: ARG002 -- nobody's share is counted
        """How far its tenant is above its share; more gives way first."""
        return 0.0

    def share(self, request: Request) -> float:  # noqa: ARG002 -- nobody's share is counted
        """The part of its class's service that is due to its tenant; 0: nobody's share is counted."""
        return 0.0

    def ahead(self, request: Request, work: Callable[[Request], float]) -> float:
        """The ``work`` of what waits and will be served before a request that would join now."""
        ...

    def charge(self, request: Request, cost: float) -> None:  # noqa: ARG002 -- nothing to do in a fixed order
        """A step spent this on it, in prices of ``CostModel``; it may have ended meanwhile."""
        return

    def candidates(self, now: float, cached_tokens: Callable[[Request], int]) -> Iterator[Request]:
        """What waits, first to start first; the one just yielded may be started before the next is asked for.

        ``cached_tokens`` tells how much of a request the prefix cache holds.
        """
        ...

    def sort(self, started: Iterable[Request]) -> list[Request]:
        """Requests in the middle of their prefill, first to be served first."""
        ...


class RankedPolicy(Policy):
    """Policies whose order is one fixed rank per request."""

    def __init__(self) -> None:
        self._line: Line[Request] = Line()

    @abstractmethod
    def rank(self, request: Request) -> Rank:
        """Its place; ends with the serial number, so no two are equal."""

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._line)

    def __iter__(self) -> Iterator[Request]:
        """In rank order."""
        return iter(self._line)

    def enqueue(self, request: Request) -> None:
        """Let it wait."""
        self._line.add(self.rank(request), request)

    def withdraw(self, request: Request) -> None:
        """It waits no more; unknown requests are ignored."""
        self._line.discard(self.rank(request))

    def start(self, request: Request, now: float, cost: float) -> None:  # noqa: ARG002 -- the order does not depend on them
        """It waits no more."""
        self.withdraw(request)

    def ahead(self, request: Request, work: Callable[[Request], float]) -> float:
        """The work of all with a smaller rank."""
        rank = self.rank(request)
        return sum(work(other) for other in takewhile(lambda other: self.rank(other) < rank, self._line))

    def candidates(self, now: float, cached_tokens: Callable[[Request], int]) -> Iterator[Request]:  # noqa: ARG002 -- the order does not depend on them
        """The waiting requests in rank order."""
        place = 0
        while place < len(self._line):
            request = self._line[place]
            yield request
            place += request.table is None

    def sort(self, started: Iterable[Request]) -> list[Request]:
        """In rank order."""
        return sorted(started, key=self.rank)


class Fcfs(RankedPolicy):
    """First come, first served: by acceptance, so a job that another worker lost keeps its place."""

    def rank(self, request: Request) -> Rank:
        """Acceptance time, then arrival here."""
        return (request.spec.arrival_seconds, request.serial)


class Priority(RankedPolicy):
    """Class bands strictly, first come first served inside a band."""

    has_classes = True

    def rank(self, request: Request) -> Rank:
        """Band, acceptance time, arrival here."""
        return (request.spec.priority, request.spec.arrival_seconds, request.serial)


class StaticBatch(Fcfs):
    """Baseline: what waits forms a batch that runs until its last answer is complete; then the next forms."""

    def __init__(self) -> None:
        super().__init__()
        self._running: set[int] = set()
        self._last_serial = 0
        self._is_open = True
        """Whether members of the batch may still start: until the first of them ends."""

    def join(self, request: Request) -> None:
        """A request that comes back from a hold counts again."""
        if request.table is not None:
            self._running.add(request.serial)

    def leave(self, request: Request) -> None:
        """One less to wait for."""
        if request.serial in self._running:
            self._running.remove(request.serial)
            self._is_open = False

    def enqueue(self, request: Request) -> None:
        """Let it wait; it may come back from a preemption."""
        self._running.discard(request.serial)
        super().enqueue(request)

    def start(self, request: Request, now: float, cost: float) -> None:
        """One more to wait for."""
        super().start(request, now, cost)
        self._running.add(request.serial)

    def candidates(self, now: float, cached_tokens: Callable[[Request], int]) -> Iterator[Request]:
        """The batch that forms; nobody while one runs."""
        if not self._running and self.is_full(now):
            self._is_open = True
            self._last_serial = max((request.serial for request in self), default=0)
        if self._is_open:
            ordered = super().candidates(now, cached_tokens)
            yield from (request for request in ordered if request.serial <= self._last_serial)

    def is_full(self, now: float) -> bool:  # noqa: ARG002 -- the base waits for no one
        """Whether the batch that waits should start."""
        return True


class DynamicBatch(StaticBatch):
    """Baseline: the same, but a batch waits to fill up, at most ``delay_seconds`` for its oldest request."""

    def __init__(self, *, batch_size: int = 8, delay_seconds: float = 0.05) -> None:
        super().__init__()
        self._batch_size = batch_size
        self._delay_seconds = delay_seconds

    @property
    def next_due(self) -> float | None:
        """When the delay of the oldest is over, unless a batch runs."""
        first = self._line.first()
        if first is None or self._running:
            return None
        return first[0][0] + self._delay_seconds

    def is_full(self, now: float) -> bool:
        """Whether enough wait, or one has waited enough."""
        due = self.next_due
        return len(self._line) >= self._batch_size or (due is not None and now >= due)


POLICIES: Final[dict[str, Callable[[], Policy]]] = {
    "fair": FairPolicy,
    "fcfs": Fcfs,
    "priority": Priority,
    "static": StaticBatch,
    "dynamic": DynamicBatch,
}
"""Policies by the name that settings use."""
