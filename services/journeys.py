"""When each request of this worker was where: what its metrics and its trace are made of.

Filled from the engine's timeline, whose clock is the worker's own. Entries are taken when their job ends;
what nobody takes (jobs that were lost or handed back) goes after a while.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from headway.engine.timeline import Happening, RequestEvent

KEPT_SECONDS: Final = 60.0


@dataclass(slots=True)
class Journey:
    """One request's way through the engine; times are None until they come."""

    arrived: float
    started: float | None = None
    finished: float | None = None
    detours: list[tuple[Happening, float]] = field(default_factory=list["tuple[Happening, float]"])
    """Every time that it gave way, and came back."""


class Journeys:
    """The journeys of requests, by id."""

    def __init__(self) -> None:
        self._journeys: dict[str, Journey] = {}

    def __len__(self) -> int:
        return len(self._journeys)

    def follow(self, events: Iterable[RequestEvent]) -> None:
        """Take in what happened since the last call."""
        now = 0.0
        for event in events:
            now = max(now, event.seconds)
            self._note(event)
        gone = [
            name
            for name, journey in self._journeys.items()
            if journey.finished is not None and now - journey.finished > KEPT_SECONDS
        ]
        for name in gone:
            del self._journeys[name]

    def take(self, requests: Iterable[str]) -> tuple[Journey, ...]:
        """The journeys of a job that ended, of those of its requests that were in the engine."""
        found = (self._journeys.pop(request, None) for request in requests)
        return tuple(journey for journey in found if journey is not None)

    def _note(self, event: RequestEvent) -> None:
        name, at = event.key.request_id, event.seconds
        match event.happening:
            case Happening.ADMITTED:
                self._journeys[name] = Journey(at)
            case Happening.STARTED if name in self._journeys:
                self._journeys[name].started = at
            case Happening.SWAPPED | Happening.RECOMPUTED | Happening.RESUMED if name in self._journeys:
                self._journeys[name].detours.append((event.happening, at))
            case Happening.FINISHED if name in self._journeys:
                self._journeys[name].finished = at
            case _:
                pass
