"""Background responses whose end a tenant's webhooks are to be told of; the batch service tells it."""

from __future__ import annotations

from headway.queueing.messages import Job
from headway.queueing.protocol import Queue
from headway.queueing.webhook_store import RESPONSE_EVENTS


async def await_end(queue: Queue, job: Job, job_id: str) -> None:
    """Write it down, if the job is one and a webhook wants it; raises QueueUnavailableError."""
    if job.notes.get("background") is not True:
        return
    webhooks = await queue.webhook_store.of_tenant(job.tenant)
    if any(event in webhook.events for webhook in webhooks for event in RESPONSE_EVENTS):
        await queue.webhook_store.await_end(job_id, 0)
