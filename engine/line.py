"""Requests in a fixed order: insert, remove and read the front without sorting anything again."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from headway.engine.request import Request

Rank = tuple[float, ...]
"""Sort key, lower goes first. Fixed per request and unique: it ends with the serial number."""


class Line:
    """A sorted list of (rank, request).

    Insertion and removal cost a bisection and a memory move (a few µs at 10,000 entries); the front is free.
    A heap would be no faster here and could neither remove from its middle nor be read in order.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Rank, Request]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        """In order; the line must not change meanwhile."""
        return (request for _, request in self._entries)

    def add(self, rank: Rank, request: Request) -> None:
        """Put a request in its place."""
        insort(self._entries, (rank, request))

    def discard(self, rank: Rank) -> None:
        """Take out the request with this rank, if it is here."""
        # A tuple that is a prefix of another sorts just before it, so this finds (rank, anything).
        place = bisect_left(self._entries, (rank,))
        if place < len(self._entries) and self._entries[place][0] == rank:
            del self._entries[place]

    def first(self) -> tuple[Rank, Request] | None:
        """The front, None when empty."""
        return self._entries[0] if self._entries else None
