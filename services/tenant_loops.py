"""Small loops that keep tenants' accounts and weights true; workers and gateways run them.

None of them is needed by itself: each repeats what any other process may have done, and all of them survive a
queue that is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from headway.queueing.errors import QueueingError
from headway.queueing.protocol import Queue
from headway.queueing.settings import DEFAULTS
from headway.queueing.settling import keep_reservations, settle
from headway.services.logs import get_logger

_log = get_logger("tenants")

SETTLE_SECONDS: Final = 0.5
WEIGHTS_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 1.0


async def settle_loop(queue: Queue, model: str) -> None:
    """Settle the reservations of a model's jobs soon after their ends."""

    async def act() -> None:
        await settle(queue, model)

    await _every(SETTLE_SECONDS, "settle", act)


async def settle_all_loop(queue: Queue) -> None:
    """The same for every model, whose workers may all be away when a waiting job is cancelled."""

    async def act() -> None:
        for model in await queue.models():
            await settle(queue, model)

    await _every(SETTLE_SECONDS, "settle", act)


async def keep_loop(queue: Queue, lease_seconds: float = DEFAULTS.reservation_seconds) -> None:
    """Keep the reservations of jobs that live; of all processes, one at a time does."""

    async def act() -> None:
        await keep_reservations(queue, lease_seconds)

    await _every(lease_seconds / 3, "keep reservations", act)


async def weights_loop(
    queue: Queue, model: str, own: Mapping[str, float], weigh: Callable[[Mapping[str, float]], None]
) -> None:
    """Bring the tenants' weights to the lane and to this worker's engine, at the start and when they change.

    ``own`` are this worker's, for tenants that the configuration does not name.
    """
    applied: dict[str, float] | None = None
    told: tuple[str, ...] = ()

    async def act() -> None:
        nonlocal applied, told
        book = await queue.tenant_store.book()
        for complaint in book.complaints if book.complaints != told else ():
            _log.warning("tenants_unreadable", error=complaint)
        told = book.complaints
        weights = dict(own) | book.weights
        if weights == applied:
            return
        await queue.set_weights(model, weights)
        weigh(dict.fromkeys(applied or {}, 1.0) | weights)
        if weights or applied:
            _log.info("weights_applied", weights=weights)
        applied = weights

    await _every(WEIGHTS_SECONDS, "weights", act)


async def _every(seconds: float, doing: str, act: Callable[[], Awaitable[object]]) -> None:
    """Act at intervals for ever; what fails is told once, and tried again."""
    has_failed = False
    while True:
        try:
            await act()
            has_failed = False
        except QueueingError as error:
            if not has_failed:
                _log.warning("tenants_wait", doing=doing, error=str(error))
            has_failed = True
            await asyncio.sleep(RETRY_SECONDS)
        await asyncio.sleep(seconds)
