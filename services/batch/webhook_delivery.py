"""A webhook's message on its way: tried until it arrives, less and less often, for three days."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Final, Literal

import structlog

from headway.queueing.errors import QueueUnavailableError
from headway.queueing.protocol import Queue
from headway.queueing.webhook_store import Webhook, WebhookMessage
from headway.services.batch.message_order import TURN_SECONDS, let_go
from headway.services.batch.webhook_post import WebhookFailedError, WebhookPost, WebhookRefusedError
from headway.services.batch.webhook_signature import signed_headers

_log = structlog.stdlib.get_logger("headway.batch")

PAUSES_SECONDS: Final = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000)
"""After each failed try: as Standard Webhooks recommends, some three days in all."""
KEEP_MS: Final = 4 * 86_400_000


Try = Literal["delivered", "failed", "given_up"]
"""How a try to deliver ended; failed: it is tried again later."""


async def deliver(queue: Queue, post: WebhookPost, message_id: str) -> Try | None:
    """One try, and what follows; None: there was nothing to do. Raises QueueUnavailableError."""
    store = queue.batch_store
    if not await store.take_turn(f"send:{message_id}", "", TURN_SECONDS):
        return None
    message: WebhookMessage | None = None
    try:
        message = await queue.webhook_store.message(message_id)
        webhook = None if message is None else await _webhook_of(queue, message)
        if message is None or webhook is None:
            await queue.webhook_store.drop(message_id)
            return None
        return await _try(queue, post, message, webhook)
    finally:
        with suppress(QueueUnavailableError):
            await store.end_turn(f"send:{message_id}", "")
            await let_go(queue, message_id, None if message is None else message.tenant)


async def _webhook_of(queue: Queue, message: WebhookMessage) -> Webhook | None:
    return await queue.webhook_store.webhook(message.tenant, message.webhook_id)


async def _try(queue: Queue, post: WebhookPost, message: WebhookMessage, webhook: Webhook) -> Try:
    now_ms = await queue.batch_store.now_ms()
    body = message.body.encode()
    headers = signed_headers(webhook.secret, message.message_id, now_ms // 1000, body)
    about = {"message": message.message_id, "tenant": message.tenant, "webhook": webhook.webhook_id}
    try:
        await asyncio.to_thread(post.post, webhook.url, headers, body)
    except WebhookRefusedError as error:
        _log.warning("webhook given up", **about, error=str(error))
        await queue.webhook_store.drop(message.message_id)
        return "given_up"
    except WebhookFailedError as error:
        return await _again(queue, message, now_ms, about, str(error))
    _log.info("webhook delivered", **about, tries=message.tries + 1)
    await queue.webhook_store.drop(message.message_id)
    return "delivered"


async def _again(
    queue: Queue, message: WebhookMessage, now_ms: int, about: dict[str, str], error: str
) -> Try:
    if message.tries >= len(PAUSES_SECONDS):
        _log.warning("webhook given up", **about, error=error, tries=message.tries + 1)
        await queue.webhook_store.drop(message.message_id)
        return "given_up"
    pause = PAUSES_SECONDS[message.tries]
    _log.info("webhook failed", **about, error=error, tries=message.tries + 1, again_in_seconds=pause)
    later = replace(message, tries=message.tries + 1)
    await queue.webhook_store.post(later, now_ms + pause * 1000, KEEP_MS)
    return "failed"
