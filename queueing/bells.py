"""Wake-ups by name inside one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager


class Bells:
    """Sleepers wait under a name; ringing the name wakes all who wait there now."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def ring(self, name: str) -> None:
        """Wake whoever waits under ``name``."""
        for sleeper in self._waiting.pop(name, ()):
            if not sleeper.done():
                sleeper.set_result(None)

    def ring_all(self) -> None:
        """Wake everyone."""
        for name in tuple(self._waiting):
            self.ring(name)

    @contextmanager
    def listening(self, *names: str) -> Generator[asyncio.Future[None]]:
        """A future that is done once one of the names has rung, counted from now on."""
        sleeper = asyncio.get_running_loop().create_future()
        for name in names:
            self._waiting.setdefault(name, set()).add(sleeper)
        try:
            yield sleeper
        finally:
            for name in names:
                self.leave(name, sleeper)

    async def wait(self, *names: str, timeout_seconds: float) -> None:
        """Sleep until one of the names rings, or the time is up."""
        with self.listening(*names) as sleeper:
            await asyncio.wait((sleeper,), timeout=max(0.0, timeout_seconds))

    def leave(self, name: str, sleeper: asyncio.Future[None]) -> None:
        """Forget a sleeper; nothing where it has been woken."""
        sleepers = self._waiting.get(name)
        if sleepers is not None:
            sleepers.discard(sleeper)
            if not sleepers:
                del self._waiting[name]
