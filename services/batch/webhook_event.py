"""What happened, on its way to each webhook that wants to hear of it."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import orjson

from headway.queueing.webhook_store import WebhookMessage, WebhookStore

MESSAGE_KEEP_MS: Final = 3 * 86_400_000
"""How long a webhook is tried."""


async def tell(store: WebhookStore, tenant: str, kind: str, about: str, at_ms: int) -> None:
    """A message for each of the tenant's webhooks, under an id that is the same when this is repeated.

    ``kind`` is the event's type, ``about`` the id of what it happened to.
    """
    event = sha256(f"{about}:{kind}".encode()).hexdigest()[:24]
    body = orjson.dumps(
        {
            "object": "event",
            "id": f"evt_{event}",
            "type": kind,
            "created_at": at_ms // 1000,
            "data": {"id": about},
        }
    ).decode()
    for webhook in await store.of_tenant(tenant):
        if kind not in webhook.events:
            continue
        message_id = f"msg_{sha256(f'{event}:{webhook.webhook_id}'.encode()).hexdigest()[:24]}"
        message = WebhookMessage(message_id, tenant, webhook.webhook_id, body, at_ms)
        await store.post(message, at_ms, MESSAGE_KEEP_MS)
