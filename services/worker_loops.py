"""A worker's small loops: renew leases, show itself, take back dead workers' jobs, watch the step.

Each is one coroutine that ends only by being cancelled; none of them can stop because the queue is away.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import random
from collections.abc import Awaitable, Callable
from typing import Final

from headway.queueing.claims import Fenced
from headway.queueing.errors import QueueUnavailableError
from headway.queueing.protocol import Queue
from headway.queueing.worker_card import WorkerCard
from headway.services.backoff import Backoff
from headway.services.claim_table import ClaimTable
from headway.services.engine_thread import EngineThread
from headway.services.logs import get_logger
from headway.services.metrics import WorkerMetrics

_log = get_logger("worker")

REAP_SECONDS: Final = 1.5
LOOK_SECONDS: Final = 0.5
HUNG_EXIT_CODE: Final = 70
"""EX_SOFTWARE of sysexits.h: tells a hung engine from a crash in the supervisor's log."""
CARD_LIVES_BEATS: Final = 5
"""A worker is forgotten after this many missed heartbeats."""


async def every(
    seconds: Callable[[], float], doing: str, act: Callable[[], Awaitable[None]], retry: Backoff
) -> None:
    """Act at intervals for ever; when the queue is away, try again sooner and say so once per failure."""
    while True:
        try:
            await act()
            retry.reset()
            wait = seconds()
        except QueueUnavailableError as error:
            _log.warning("queue_unavailable", doing=doing, error=str(error))
            wait = retry.next_seconds()
        await asyncio.sleep(wait)


async def renew_loop(queue: Queue, table: ClaimTable, lease_seconds: float) -> None:
    """Renew all leases every third of a lease, in one call; two renewals may fail before a job is lost."""

    async def renew() -> None:
        jobs = tuple(table)
        if not jobs:
            return
        outcomes = await queue.renew([job.pair for job in jobs])
        for job, outcome in zip(jobs, outcomes, strict=True):
            # Its end may have been written while the renewal was under way: then this is no loss.
            if table.holds(job) and outcome is Fenced.LOST:
                table.lose(job)
            elif outcome is Fenced.CANCELLED:
                table.cancel(job.job_id)

    interval = lease_seconds / 3
    # After an outage longer than a lease, whoever looks first may take the jobs back: be quick to renew.
    await every(lambda: interval, "renew", renew, Backoff(interval / 10, min(1.0, interval / 2)))


async def heartbeat_loop(queue: Queue, card: Callable[[], WorkerCard], seconds: float) -> None:
    """Tell the fleet about this worker."""

    async def beat() -> None:
        await queue.heartbeat(card(), ttl_seconds=seconds * CARD_LIVES_BEATS)

    await every(lambda: seconds, "heartbeat", beat, Backoff(seconds / 2, seconds * 2))


async def look_loop(metrics: WorkerMetrics) -> None:
    """Take in the engine's timeline before its rings have gone round, scraped or not."""
    while True:
        metrics.look()
        await asyncio.sleep(LOOK_SECONDS)


async def reap_loop(queue: Queue, model: str, lease_seconds: float) -> None:
    """Take back jobs whose worker died. Every worker does it, spread out, so that no single one is needed."""
    retry = Backoff(1.0, 1.0)

    async def reap() -> None:
        try:
            reaped = await queue.reap(model)
        except QueueUnavailableError:
            # While the server was away nobody could renew. Its clock ran on: give the owners time to speak.
            await asyncio.sleep(lease_seconds / 2)
            raise
        if reaped.requeued or reaped.dead_lettered:
            _log.warning("jobs_taken_back", requeued=reaped.requeued, dead_lettered=reaped.dead_lettered)

    await every(lambda: REAP_SECONDS * random.uniform(0.7, 1.3), "reap", reap, retry)


async def watchdog_loop(
    engine: EngineThread, hung_after_seconds: float, end_process: Callable[[int], None] = os._exit
) -> None:
    """End the process when a step hangs: only then do its jobs move on to a worker that can run them.

    ``faulthandler`` is the second line: its timer is a C thread, which also fires when a library hangs while
    it holds Python's lock, and this loop with it.
    """
    second_line = hung_after_seconds * 1.25 + 5
    try:
        while True:
            faulthandler.dump_traceback_later(second_line, exit=True)
            age = engine.step_age_seconds()
            if age > hung_after_seconds:
                _log.critical("engine_hung", step_age_seconds=round(age, 1), exit_code=HUNG_EXIT_CODE)
                faulthandler.dump_traceback(all_threads=True)
                end_process(HUNG_EXIT_CODE)
            await asyncio.sleep(min(1.0, hung_after_seconds / 4))
    finally:
        faulthandler.cancel_dump_traceback_later()
