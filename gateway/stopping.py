"""How a gateway stops: first it takes no new work, then it ends the streams that are still open."""

from __future__ import annotations

import asyncio


class Stopping:
    """Two steps, each final. Jobs are not part of it: what was accepted lives on in the queue."""

    def __init__(self) -> None:
        self.is_draining = False
        self._ended = asyncio.Event()

    def drain(self) -> None:
        """Take no new work: ``/readyz`` turns to 503 and so do new jobs; open streams go on."""
        self.is_draining = True

    def end(self) -> None:
        """End every open stream with an error frame that says where its job goes on."""
        self.is_draining = True
        self._ended.set()

    @property
    def has_ended(self) -> bool:
        """Whether ``end`` was called."""
        return self._ended.is_set()

    async def wait_for_end(self) -> None:
        """Return once ``end`` is called."""
        await self._ended.wait()
