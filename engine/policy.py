"""Who goes first. A policy owns the order of the waiting requests and nothing else.

The scheduler asks for candidates lazily, so a step pays for the few it looks at, not for all that wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from headway.engine.line import Line, Rank
from headway.engine.request import Request


class Policy(Protocol):
    """The order in which requests start, and share the prefill budget once they have."""

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        ...

    def enqueue(self, request: Request) -> None:
        """Let it wait."""
        ...

    def withdraw(self, request: Request) -> None:
        """It waits no more: started, held or ended."""
        ...

    def candidates(self) -> Iterator[Request]:
        """The waiting requests, first to start first. Neither enqueue nor withdraw while this is read."""
        ...

    def sort(self, started: Iterable[Request]) -> list[Request]:
        """Requests in the middle of their prefill, first to be served first."""
        ...


class RankedPolicy(ABC):
    """Policies whose order is one fixed rank per request."""

    def __init__(self) -> None:
        self._line = Line()

    @abstractmethod
    def rank(self, request: Request) -> Rank:
        """Its place; ends with the serial number, so no two are equal."""

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._line)

    def enqueue(self, request: Request) -> None:
        """Let it wait."""
        self._line.add(self.rank(request), request)

    def withdraw(self, request: Request) -> None:
        """It waits no more; unknown requests are ignored."""
        self._line.discard(self.rank(request))

    def candidates(self) -> Iterator[Request]:
        """The waiting requests in rank order."""
        return iter(self._line)

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

    def rank(self, request: Request) -> Rank:
        """Band, acceptance time, arrival here."""
        return (request.spec.priority, request.spec.arrival_seconds, request.serial)


POLICIES: Final[dict[str, type[RankedPolicy]]] = {"fcfs": Fcfs, "priority": Priority}
"""Policies by the name that settings use."""
