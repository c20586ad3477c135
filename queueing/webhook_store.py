"""Webhooks of tenants, and the messages on their way to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

import orjson

from headway.queueing.batch_store import Commands
from headway.queueing.keys import ENDS_AWAITED, MESSAGES_DUE, WebhookKeys
from headway.queueing.node import Reply
from headway.queueing.record_fields import known_fields

BATCH_EVENTS: Final = ("batch.completed", "batch.failed", "batch.expired", "batch.cancelled")
RESPONSE_EVENTS: Final = (
    "response.completed",
    "response.incomplete",
    "response.failed",
    "response.cancelled",
)
EVENTS: Final = BATCH_EVENTS + RESPONSE_EVENTS


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where a tenant wants to be told, of what, and the secret that signs it (``whsec_…``)."""

    webhook_id: str
    tenant: str
    url: str
    secret: str
    events: tuple[str, ...] = EVENTS
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class WebhookMessage:
    """One message to one webhook. Its id is the same at each try, so that a receiver can tell a repeat."""

    message_id: str
    tenant: str
    webhook_id: str
    body: str
    created_ms: int
    tries: int = 0


class WebhookStore:
    """Raises QueueUnavailableError."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def put(self, webhook: Webhook) -> None:
        """Add a webhook, or change it."""
        text = orjson.dumps(asdict(webhook))
        await self._commands.call("HSET", WebhookKeys.of_tenant(webhook.tenant), webhook.webhook_id, text)

    async def of_tenant(self, tenant: str) -> tuple[Webhook, ...]:
        """A tenant's webhooks, the oldest first."""
        flat = cast("list[bytes]", await self._commands.call("HGETALL", WebhookKeys.of_tenant(tenant)))
        found = [webhook for text in flat[1::2] if (webhook := _webhook(text)) is not None]
        return tuple(sorted(found, key=lambda webhook: (webhook.created_ms, webhook.webhook_id)))

    async def webhook(self, tenant: str, webhook_id: str) -> Webhook | None:
        """One of them."""
        text = await self._commands.call("HGET", WebhookKeys.of_tenant(tenant), webhook_id)
        return _webhook(text)

    async def remove(self, tenant: str, webhook_id: str) -> bool:
        """Tell it nothing more; False: there was none."""
        return await self._commands.call("HDEL", WebhookKeys.of_tenant(tenant), webhook_id) == 1

    async def post(self, message: WebhookMessage, due_ms: int, keep_ms: int) -> None:
        """Send a message from ``due_ms`` on; the same one again: its newer form at the newer time."""
        key = WebhookKeys.message(message.message_id)
        await self._all(
            ("SET", key, orjson.dumps(asdict(message)), "PX", keep_ms),
            ("ZADD", MESSAGES_DUE, due_ms, message.message_id),
        )

    async def message(self, message_id: str) -> WebhookMessage | None:
        """A message that is on its way."""
        text = await self._commands.call("GET", WebhookKeys.message(message_id))
        return _message(text)

    async def messages(self, message_ids: Sequence[str]) -> list[WebhookMessage | None]:
        """These messages, in their order; None: it is not on its way any more."""
        replies = await self._all(*(("GET", WebhookKeys.message(each)) for each in message_ids))
        return [_message(reply) for reply in replies]

    async def postpone(self, message_ids: Sequence[str], due_ms: int) -> None:
        """Let messages wait; those that have arrived meanwhile stay away."""
        await self._all(*(("ZADD", MESSAGES_DUE, "XX", due_ms, each) for each in message_ids))

    async def due(self, now_ms: int, limit: int) -> tuple[str, ...]:
        """Messages whose time has come, the most overdue first."""
        reply = await self._commands.call("ZRANGEBYSCORE", MESSAGES_DUE, "-inf", now_ms, "LIMIT", 0, limit)
        return tuple(text.decode() for text in cast("list[bytes]", reply))

    async def count(self, now_ms: int) -> tuple[int, int]:
        """Messages whose time has come, and all that are on their way."""
        due, every = await self._all(("ZCOUNT", MESSAGES_DUE, "-inf", now_ms), ("ZCARD", MESSAGES_DUE))
        return cast("int", due), cast("int", every)

    async def drop(self, message_id: str) -> None:
        """It has arrived, or never will."""
        await self._all(("ZREM", MESSAGES_DUE, message_id), ("DEL", WebhookKeys.message(message_id)))

    async def await_end(self, job_id: str, look_ms: int) -> None:
        """The end of this job is to be told; somebody looks at it from then on. Again: at the newer time."""
        await self._commands.call("ZADD", ENDS_AWAITED, look_ms, job_id)

    async def awaited(self, now_ms: int, limit: int) -> tuple[str, ...]:
        """Jobs that are to be looked at, the most overdue first."""
        reply = await self._commands.call("ZRANGEBYSCORE", ENDS_AWAITED, "-inf", now_ms, "LIMIT", 0, limit)
        return tuple(text.decode() for text in cast("list[bytes]", reply))

    async def end_told(self, job_id: str) -> None:
        """Its end is on its way, or will never be known."""
        await self._commands.call("ZREM", ENDS_AWAITED, job_id)

    async def _all(self, *commands: tuple[str | bytes | int, ...]) -> Sequence[Reply]:
        if not commands:
            return ()
        replies = await self._commands.pipeline(commands)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies


def _message(text: Reply) -> WebhookMessage | None:
    """None: there is none, or nothing that can be read; what a newer version adds is left out."""
    if not isinstance(text, bytes):
        return None
    try:
        found: dict[str, Any] = orjson.loads(text)
        return WebhookMessage(**known_fields(WebhookMessage, found))
    except (ValueError, TypeError, KeyError):
        return None


def _webhook(text: Reply) -> Webhook | None:
    """The same of a webhook."""
    if not isinstance(text, bytes):
        return None
    try:
        found: dict[str, Any] = orjson.loads(text)
        found["events"] = tuple(found["events"])
        return Webhook(**known_fields(Webhook, found))
    except (ValueError, TypeError, KeyError):
        return None
