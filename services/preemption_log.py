"""Why answers pause: a line for each request that gave way to others, and for each that is back.

preempted   tenant, mode, tokens lost or bytes moved, what both ways were predicted to cost, KV use
resumed     what the way taken cost, beside its prediction
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from typing import Final

from headway.engine.detours import Comeback, Departure
from headway.services.logs import Log

LINES_AT_ONCE: Final = 8
"""Of each look; beyond that one line sums up, so that thrashing does not flood the log."""
LOOK_SECONDS: Final = 1.0


class PreemptionLog:
    """Empties an engine's ring of detours into a log; any thread may call it beside the engine's."""

    def __init__(self, happened: deque[Departure | Comeback], log: Log) -> None:
        self._happened = happened
        self._log = log

    async def run(self) -> None:
        """Look every second, for ever."""
        while True:
            self.write()
            await asyncio.sleep(LOOK_SECONDS)

    def write(self) -> None:
        """Log what happened since the last call."""
        lines = 0
        beyond: Counter[str] = Counter()
        while self._happened:
            event = self._happened.popleft()
            if lines < LINES_AT_ONCE:
                self._tell(event)
                lines += 1
            elif isinstance(event, Departure):
                beyond.update(preempted=1, lost_tokens=event.lost_tokens, moved_bytes=event.moved_bytes)
            else:
                beyond.update(resumed=1)
        if beyond:
            self._log.info("more_preemptions", **beyond)

    def _tell(self, event: Departure | Comeback) -> None:
        about = {
            "request": event.key.request_id,
            "tenant": event.tenant,
            "priority": event.priority,
            "mode": event.mode.value,
        }
        if isinstance(event, Departure):
            self._log.info(
                "preempted",
                **about,
                lost_tokens=event.lost_tokens,
                moved_bytes=event.moved_bytes,
                swap_ms=_milliseconds(event.swap_seconds),
                recompute_ms=_milliseconds(event.recompute_seconds),
                kv_share_before=round(event.kv_blocks_before / event.kv_blocks_total, 3),
                kv_share_after=round(event.kv_blocks_after / event.kv_blocks_total, 3),
            )
        else:
            self._log.info(
                "resumed",
                **about,
                predicted_ms=_milliseconds(event.predicted_seconds),
                real_ms=_milliseconds(event.real_seconds),
            )


def _milliseconds(seconds: float) -> float | None:
    """None: that way was not open."""
    return round(seconds * 1e3, 3) if math.isfinite(seconds) else None
