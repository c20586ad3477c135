"""What the producers', consumers' and operators' sides of MemoryQueue share."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random, SystemRandom

from headway.queueing.ids import lane_of
from headway.queueing.memory_lane import Lane
from headway.queueing.memory_store import MemoryStore
from headway.queueing.settings import DEFAULTS, QueueSettings
from headway.queueing.worker_card import WorkerCard


class MemorySide:
    """A store, the settings, and what workers told of themselves."""

    def __init__(
        self,
        settings: QueueSettings = DEFAULTS,
        *,
        clock: Callable[[], float] = time.time,
        rng: Random | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._rng = rng or SystemRandom()
        self._store = MemoryStore(settings, clock, self._rng)
        self._cards: dict[str, tuple[WorkerCard, int, int]] = {}
        """Each with its heartbeat and when it lapses, in milliseconds."""
        self._models: set[str] = set()
        self._cancels: dict[str, list[str]] = {}

    def _lane(self, model: str) -> Lane:
        return self._store.lane(lane_of(model))
