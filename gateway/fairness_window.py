"""How evenly tenants that wait are served, by what their virtual times gained while all of them waited.

    x_k = gain of tenant k's virtual time = service / weight         J = (Σx)² / (n·Σx²)

1: each got service by its weight; 1/n: one got all of it. Only tenants that had work waiting at every look of
the window count: who asks for little gets little, and that is no unfairness. A virtual time is lifted only
when its tenant comes back from idle, so while it waits the gain is service and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

SECONDS: Final = 60.0
"""Long against a job, whose whole cost is booked when it is claimed; short against an operator's patience."""


class FairnessWindow:
    """The looks of the last minute at one band of one model."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._looks: deque[tuple[float, dict[str, float]]] = deque()

    def look(self, now: float, times: Mapping[str, float]) -> float | None:
        """Add the virtual times of all that wait now; returns Jain's index over the window.

        None: fewer than two tenants waited all the time, or none of them gained anything.
        """
        while self._looks and now - self._looks[0][0] > self._seconds:
            self._looks.popleft()
        self._looks.append((now, dict(times)))
        waited = [tenant for tenant in times if all(tenant in look for _, look in self._looks)]
        first = self._looks[0][1]
        gains = [max(0.0, times[tenant] - first[tenant]) for tenant in waited]
        squares = sum(gain * gain for gain in gains)
        if len(gains) < 2 or squares <= 0.0:
            return None
        return sum(gains) ** 2 / (len(gains) * squares)
