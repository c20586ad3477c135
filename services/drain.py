"""The end of a worker that was asked to stop: finish what is nearly done, hand the rest to the others.

A job handed back keeps its committed tokens and its place at the front of its band; its next owner computes
prompt and tokens once more and goes on with the next token. That costs a prefill, so jobs that can only end
within the drain are left to end here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from headway.services.claim_table import ClaimTable
from headway.services.claimed_job import ClaimedJob, Phase
from headway.services.engine_thread import EngineThread
from headway.services.logs import get_logger

_log = get_logger("drain")

HAND_OVER_SECONDS: Final = 1.5
"""For the last tokens and the releases of what did not end in time; within any process manager's patience."""


async def drain(
    table: ClaimTable, engine: EngineThread, drain_seconds: float, clock: Callable[[], float]
) -> None:
    """Returns when nothing is left in the table, or when even handing over took too long."""
    limit = clock() + drain_seconds
    kept = 0
    for job in table:
        if _ends_within(job, engine, drain_seconds):
            kept += 1
        else:
            table.hand_back(job)
    _log.info("draining", finishing=kept, handing_back=len(table) - kept, limit_seconds=drain_seconds)
    if not await _emptied(table, limit - clock()):
        await hand_over(table)


async def hand_over(table: ClaimTable, within_seconds: float = HAND_OVER_SECONDS) -> None:
    """Hand everything back now."""
    for job in table:
        table.hand_back(job)
    if not await _emptied(table, within_seconds):
        # Their leases end by themselves: the jobs are late, not lost.
        _log.warning("left_to_their_leases", jobs=[job.job_id for job in table])


def _ends_within(job: ClaimedJob, engine: EngineThread, seconds: float) -> bool:
    """Whether a job is sure to end in time at the present pace: one token per step, up to its limit."""
    if job.phase in {Phase.ENDED, Phase.STOPPED}:
        return True
    return job.phase is Phase.RUNNING and job.remaining_steps * engine.load.last_step_seconds <= seconds


async def _emptied(table: ClaimTable, within_seconds: float) -> bool:
    """Wait until no job is left; False when the time is up."""
    try:
        async with asyncio.timeout(max(0.0, within_seconds)):
            while len(table):
                table.changed.clear()
                await table.changed.wait()
    except TimeoutError:
        return False
    return True
