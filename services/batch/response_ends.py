"""Ends of background responses, told to their tenants' webhooks."""

from __future__ import annotations

from typing import Final

import structlog

from headway.gateway.response_ids import response_id_of
from headway.gateway.response_objects import STATUS
from headway.queueing.errors import QueueUnavailableError, UnknownJobError
from headway.queueing.protocol import Queue
from headway.services.batch.webhook_event import tell

_log = structlog.stdlib.get_logger("headway.batch")

AT_ONCE: Final = 200
LEAST_PAUSE_MS: Final = 1000
MOST_PAUSE_MS: Final = 30_000
PAUSE_SHARE: Final = 0.1
"""Of a response's age: one that has taken long may be told of a little later."""


async def tell_response_ends(queue: Queue) -> None:
    """Look at those that are due; raises QueueUnavailableError.

    An end is struck off once its messages are written down: killed in between, it is told again, under the
    same ids.
    """
    store = queue.webhook_store
    now_ms = await queue.batch_store.now_ms()
    for job_id in await store.awaited(now_ms, AT_ONCE):
        try:
            await _look_at(queue, job_id, now_ms)
        except QueueUnavailableError:
            raise
        except Exception:  # whatever is wrong with one record: the others', and all batches, go on
            _log.exception("response cannot be told of", job=job_id)
            await store.await_end(job_id, now_ms + MOST_PAUSE_MS)


async def _look_at(queue: Queue, job_id: str, now_ms: int) -> None:
    store = queue.webhook_store
    try:
        result = await queue.result(job_id)  # first: the record must not be older than the answer
        status = await queue.status(job_id)
    except UnknownJobError:  # deleted, or nobody looked for an hour after its end
        await store.end_told(job_id)
        return
    if result is None:
        pause_ms = int((now_ms - status.created_ms) * PAUSE_SHARE)
        await store.await_end(job_id, now_ms + min(max(pause_ms, LEAST_PAUSE_MS), MOST_PAUSE_MS))
        return
    kind = f"response.{STATUS[result.reason]}"
    await tell(store, status.tenant, kind, response_id_of(job_id), status.finished_ms)
    await store.end_told(job_id)
