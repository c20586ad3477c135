"""What workers show of their last steps while somebody watches: the seam, and its edition in memory.

A view is one JSON text of a worker's last few tenths of a second (services/step_view.py says what is in it).
Views are pictures, not records: nothing is lost with them, only the newest are kept, and nobody who serves
jobs waits for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

VIEWS_KEPT: Final = 40
"""Per worker: some 16 seconds, so that who begins to watch sees a full picture at once."""
KEPT_SECONDS: Final = 30.0
"""After a worker's last view."""


@dataclass(frozen=True, slots=True)
class StepView:
    """One view. ``place`` grows with each view of a worker."""

    worker_id: str
    place: str
    text: bytes


class StepViews(Protocol):
    """Between the workers of a fleet and whoever watches them."""

    async def watch(self, seconds: float) -> None:
        """Ask all workers to show their steps for so long from now on."""
        ...

    async def is_watched(self) -> bool:
        """Whether anybody asks for views now."""
        ...

    async def show(self, worker_id: str, text: bytes) -> None:
        """Add a worker's next view; the oldest goes when there are more than VIEWS_KEPT."""
        ...

    async def shown(self, after: Mapping[str, str]) -> tuple[StepView, ...]:
        """Views of these workers behind the place named for each, in order; empty: all that are kept."""
        ...


class MemoryStepViews:
    """Keeps every promise of ``StepViews`` within one process; ``clock`` gives seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._watched_until = 0.0
        self._shown: dict[str, tuple[deque[StepView], float]] = {}
        """Each worker's views, and when they lapse."""
        self._count = 0

    async def watch(self, seconds: float) -> None:
        """See ``StepViews.watch``."""
        self._watched_until = self._clock() + seconds

    async def is_watched(self) -> bool:
        """See ``StepViews.is_watched``."""
        return self._clock() < self._watched_until

    async def show(self, worker_id: str, text: bytes) -> None:
        """See ``StepViews.show``."""
        self._count += 1
        views, _ = self._shown.get(worker_id, (deque[StepView](maxlen=VIEWS_KEPT), 0.0))
        views.append(StepView(worker_id, f"{self._count}-0", text))
        self._shown[worker_id] = (views, self._clock() + KEPT_SECONDS)

    async def shown(self, after: Mapping[str, str]) -> tuple[StepView, ...]:
        """See ``StepViews.shown``."""
        now = self._clock()
        self._shown = {worker: kept for worker, kept in self._shown.items() if kept[1] > now}
        return tuple(
            view
            for worker_id, place in after.items()
            for view in self._shown.get(worker_id, ((), 0.0))[0]
            if _number(view.place) > _number(place)
        )


def _number(place: str) -> int:
    return int(place.partition("-")[0] or 0)
