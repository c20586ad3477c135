"""What ``headway batch`` and ``headway webhooks`` do once their options are read."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from headway.gateway.batch_objects import batch_object
from headway.queueing.batch import Batch
from headway.queueing.errors import QueueUnavailableError, UnreadableRecordError
from headway.queueing.protocol import Queue
from headway.queueing.tenants import check_tenant
from headway.queueing.webhook_store import EVENTS, Webhook
from headway.services.batch.webhook_post import WebhookPost, WebhookRefusedError
from headway.services.batch.webhook_signature import new_secret
from headway.services.connection import close_queue, locate, not_reachable, open_queue
from headway.services.errors import ServiceError, UsageError

T = TypeVar("T")


def list_batches(tenant: str, limit: int, redis_url: str | None, state_dir: Path) -> list[dict[str, Any]]:
    """The newest batches of a tenant, as OpenAI's objects. Raises ServiceError."""

    async def ask(queue: Queue) -> list[dict[str, Any]]:
        page = await queue.batch_store.batch_page(tenant, None, limit)
        ids = () if page is None else page.ids
        return [batch_object(batch) for batch in await queue.batch_store.batches(ids)]

    return with_queue(redis_url, state_dir, ask)


def batch_table(batches: list[dict[str, Any]]) -> str:
    """Batches for people."""
    rows: list[tuple[str, ...]] = [("BATCH", "STATE", "DONE", "FAILED", "LINES")]
    for batch in batches:
        counts = batch["request_counts"]
        rows.append(
            (batch["id"], batch["status"], *(str(counts[name]) for name in ("completed", "failed", "total")))
        )
    return _aligned(rows)


def show_batch(batch_id: str, redis_url: str | None, state_dir: Path) -> dict[str, Any]:
    """A batch as OpenAI's object. Raises ServiceError."""
    return with_queue(redis_url, state_dir, lambda queue: _shown(queue, batch_id))


def cancel_batch(batch_id: str, redis_url: str | None, state_dir: Path) -> str:
    """Ask for a batch's end; its state then. Raises ServiceError."""

    async def ask(queue: Queue) -> str:
        batch = await _found(queue, batch_id)
        if batch.outcome is None:
            await queue.batch_store.cancel_batch(batch_id)
        return (await _found(queue, batch_id)).state.value

    return with_queue(redis_url, state_dir, ask)


def add_webhook(
    tenant: str, url: str, events: str, redis_url: str | None, state_dir: Path, *, allows_private: bool
) -> Webhook:
    """A new webhook with a fresh secret. Raises ServiceError."""
    wanted = tuple(name for part in events.split(",") if (name := part.strip())) or EVENTS
    if unknown := [name for name in wanted if name not in EVENTS]:
        raise UsageError(f"there is no event {unknown[0]!r}", hint=", ".join(EVENTS))
    try:
        check_tenant(tenant)
        WebhookPost(allows_private=allows_private).check_url(url)
    except WebhookRefusedError as error:
        raise UsageError(str(error), hint=_way_to_allow(url)) from None
    except ValueError as error:
        raise UsageError(str(error)) from None

    async def put(queue: Queue) -> Webhook:
        now_ms = await queue.batch_store.now_ms()
        webhook = Webhook(f"wh_{secrets.token_hex(8)}", tenant, url, new_secret(), wanted, now_ms)
        await queue.webhook_store.put(webhook)
        return webhook

    return with_queue(redis_url, state_dir, put)


def _way_to_allow(url: str) -> str | None:
    """What would let a refused URL in, if anything does."""
    try:
        WebhookPost(allows_private=True).check_url(url)
    except WebhookRefusedError:
        return None
    return "--webhook-allow-private, where tenants are trusted"


def find_webhooks(tenant: str, redis_url: str | None, state_dir: Path) -> list[dict[str, Any]]:
    """A tenant's webhooks, without their secrets. Raises ServiceError."""

    async def ask(queue: Queue) -> list[dict[str, Any]]:
        return [
            {"id": each.webhook_id, "url": each.url, "events": list(each.events)}
            for each in await queue.webhook_store.of_tenant(tenant)
        ]

    return with_queue(redis_url, state_dir, ask)


def webhook_table(webhooks: list[dict[str, Any]]) -> str:
    """Webhooks for people."""
    rows = [("WEBHOOK", "EVENTS", "URL")]
    rows += [(each["id"], ",".join(each["events"]), each["url"]) for each in webhooks]
    return _aligned(rows)


def drop_webhook(tenant: str, webhook_id: str, redis_url: str | None, state_dir: Path) -> None:
    """Remove a webhook. Raises ServiceError."""

    async def drop(queue: Queue) -> bool:
        return await queue.webhook_store.remove(tenant, webhook_id)

    if not with_queue(redis_url, state_dir, drop):
        raise ServiceError(f"{tenant} has no webhook {webhook_id}", hint=f"headway webhooks list {tenant}")


def with_queue(redis_url: str | None, state_dir: Path, act: Callable[[Queue], Awaitable[T]]) -> T:
    """What ``act`` returns, with the queue of a URL or of the running ``headway up``. Raises ServiceError."""
    url, _ = locate(redis_url, state_dir)

    async def run() -> T:
        queue = open_queue(url)
        try:
            return await act(queue)
        except QueueUnavailableError as error:
            raise not_reachable(url, error) from None
        except UnreadableRecordError as error:
            raise ServiceError(str(error), hint="it is damaged, or of another version of headway") from None
        finally:
            await close_queue(queue)

    return asyncio.run(run())


async def _shown(queue: Queue, batch_id: str) -> dict[str, Any]:
    return batch_object(await _found(queue, batch_id))


async def _found(queue: Queue, batch_id: str) -> Batch:
    batch = await queue.batch_store.batch(batch_id)
    if batch is None:
        raise ServiceError(f"there is no batch {batch_id}", hint="headway batch list --tenant TENANT")
    return batch


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    padded = [[f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in padded)
