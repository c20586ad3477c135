"""Whether the client kept up: its CPU time, and how late its event loop wakes."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway.services.percentile import percentile

TICK_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """What the client took while a point was measured."""

    cpu_share: float
    """Of one core; the client is one thread."""
    lag_p50: float
    lag_p99: float
    lag_max: float
    """Seconds by which the loop woke too late: what comes meanwhile is noted that much too late."""
    seconds: float

    def shown(self) -> dict[str, Any]:
        """For the result."""
        return {
            "cpu_share": round(self.cpu_share, 4),
            "loop_lag_seconds": {
                "p50": round(self.lag_p50, 6),
                "p99": round(self.lag_p99, 6),
                "max": round(self.lag_max, 6),
            },
        }


class ClientWatch:
    """Measures from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self._lags = array("d")
        self._task: asyncio.Task[None] | None = None
        self._began = self._cpu = 0.0

    def start(self) -> None:
        """From now on."""
        self._began, self._cpu = time.monotonic(), time.process_time()
        self._task = asyncio.get_running_loop().create_task(self._tick())

    def stop(self) -> ClientLoad:
        """What was measured."""
        if self._task is not None:
            self._task.cancel()
        seconds = max(1e-9, time.monotonic() - self._began)
        lags = sorted(self._lags) or [0.0]
        return ClientLoad(
            (time.process_time() - self._cpu) / seconds,
            percentile(lags, 50),
            percentile(lags, 99),
            lags[-1],
            seconds,
        )

    async def _tick(self) -> None:
        while True:
            due = time.monotonic() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            # uvloop's timers count whole milliseconds and may be one early.
            self._lags.append(max(0.0, time.monotonic() - due))


def complaints(
    late: Sequence[float],
    load: ClientLoad,
    *,
    max_lateness: float,
    max_cpu: float,
    unsent: Sequence[str] = (),
) -> list[str]:
    """Why the figures of a point are not the server's; empty: the client kept up.

    ``late``: seconds by which each request was sent too late; ``unsent``: why each was not sent at all.
    """
    found: list[str] = []
    p99 = percentile(sorted(late), 99) if late else 0.0
    if p99 > max_lateness:
        found.append(
            f"requests were sent late: P99 {1e3 * p99:.1f} ms after they were due, more than the "
            f"{1e3 * max_lateness:g} ms of --max-lateness"
        )
    if load.lag_p99 > max_lateness:
        found.append(
            f"the client's event loop lagged: P99 {1e3 * load.lag_p99:.1f} ms, more than the "
            f"{1e3 * max_lateness:g} ms of --max-lateness, so tokens were noted late"
        )
    if load.cpu_share > max_cpu:
        found.append(
            f"the client was busy for {100 * load.cpu_share:.0f} % of a core, more than the "
            f"{100 * max_cpu:g} % of --max-client-cpu"
        )
    if unsent:
        found.append(f"{len(unsent)} requests were not sent: {unsent[0]}")
    return found
