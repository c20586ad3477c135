"""Jobs of a batch whose input is gone: without its lines nobody knows their keys, so the queue is asked."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from headway.queueing.batch import NewBatch
from headway.queueing.errors import UnknownJobError
from headway.queueing.ids import JobId
from headway.queueing.protocol import Queue

MOST_LOOKED_AT: Final = 20_000
"""Jobs of one tenant that wait for a model, and jobs that run on one."""


async def cancel_jobs(queue: Queue, asked: NewBatch, reason: str) -> int:
    """Cancel whatever of a batch waits or runs; returns how many jobs. Raises QueueUnavailableError."""
    count = 0
    for model in await queue.models():
        waiting = await queue.waiting_jobs(model, tenant=asked.tenant, limit=MOST_LOOKED_AT)
        running = await queue.running_jobs(model, MOST_LOOKED_AT)
        for job in (*waiting, *running):
            if job.tenant != asked.tenant or not JobId.parse(job.job_id).key.startswith(f"{asked.batch_id}-"):
                continue
            with suppress(UnknownJobError):
                await queue.cancel(job.job_id, reason)
                count += 1
    return count
