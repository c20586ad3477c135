"""How long to wait before the next try."""

from __future__ import annotations

import random


class Backoff:
    """Doubles from ``first_seconds`` to ``longest_seconds``; spread over the upper half, so that a fleet that
    failed together does not come back together."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first = first_seconds
        self._longest = longest_seconds
        self._next = first_seconds

    def next_seconds(self) -> float:
        """The wait before the next try; each call is one more failure."""
        wait = self._next * random.uniform(0.5, 1.0)
        self._next = min(self._longest, self._next * 2)
        return wait

    def reset(self) -> None:
        """The last try worked."""
        self._next = self._first
