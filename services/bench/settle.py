"""Waits until a server has come to rest: what one point left behind must not be measured with the next.

Not every server notices that a client went away; one that does not goes on with answers that nobody reads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

SLACK_SECONDS: Final = 0.1
FACTOR: Final = 2.0
"""A short answer may take this many times as long as on the idle server, and the slack."""
PAUSE_SECONDS: Final = 0.25

Probe = Callable[[], Awaitable[None]]
"""One short answer."""


class Rest:
    """Knows how long a short answer takes at rest."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._usual: float | None = None

    async def settle(self, patience_seconds: float) -> bool:
        """Return once the server is at rest, or False when it is not within the patience.

        The first call, before any load, only measures.
        """
        if self._usual is None:
            self._usual = min([await self._seconds() for _ in range(2)])
            return True
        give_up = time.monotonic() + patience_seconds
        while await self._seconds() > FACTOR * self._usual + SLACK_SECONDS:
            if time.monotonic() > give_up:
                return False
            await asyncio.sleep(PAUSE_SECONDS)
        return True

    async def _seconds(self) -> float:
        began = time.monotonic()
        await self._probe()
        return time.monotonic() - began
