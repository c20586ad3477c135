"""Webhook messages: few of a tenant at a time, so slow receivers hold up nobody else."""

from __future__ import annotations

import random
from collections import deque
from typing import Final

from headway.queueing.protocol import Queue

OF_A_TENANT: Final = 2
"""Tries of one tenant's messages at a time, in all processes together."""
TURN_SECONDS: Final = 40.0
"""More than a try can take; what was asked for and lost with its worker is asked for again after that."""
LOOKED_AT: Final = 500
STEPS_ASIDE_MS: Final = 10_000


async def messages_to_send(queue: Queue, now_ms: int) -> tuple[str, ...]:
    """Due messages that nobody sends, each asked for by nobody else now. Raises QueueUnavailableError."""
    due = await queue.webhook_store.due(now_ms, LOOKED_AT)
    waiting = await _by_tenant(queue, due)
    tenants = random.sample(list(waiting), len(waiting))  # no order in which the same ones are always last
    chosen: list[str] = []
    for place in range(OF_A_TENANT):
        for tenant in tenants:
            chosen += await _choose(queue, tenant, place, waiting[tenant])
    if len(due) == LOOKED_AT:  # behind these may wait others, which nobody would ever see
        aside = [message_id for ids in waiting.values() for message_id in ids]
        await queue.webhook_store.postpone(aside, now_ms + STEPS_ASIDE_MS)
    return tuple(chosen)


async def let_go(queue: Queue, message_id: str, tenant: str | None) -> None:
    """A try is over, or will not be made: the next may be asked for."""
    store = queue.batch_store
    await store.end_turn(f"asked:{message_id}", "")
    for place in range(OF_A_TENANT if tenant is not None else 0):
        await store.end_turn(_place(tenant, place), message_id)


async def _by_tenant(queue: Queue, due: tuple[str, ...]) -> dict[str, deque[str]]:
    waiting: dict[str, deque[str]] = {}
    for message_id, message in zip(due, await queue.webhook_store.messages(due), strict=True):
        if message is None:
            await queue.webhook_store.drop(message_id)
        else:
            waiting.setdefault(message.tenant, deque()).append(message_id)
    return waiting


async def _choose(queue: Queue, tenant: str, place: int, ids: deque[str]) -> list[str]:
    store = queue.batch_store
    while ids and await store.has_turn(f"asked:{ids[0]}"):
        ids.popleft()
    if not ids or not await store.take_turn(_place(tenant, place), ids[0], TURN_SECONDS):
        return []
    message_id = ids.popleft()
    if await store.take_turn(f"asked:{message_id}", "", TURN_SECONDS):
        return [message_id]
    await store.end_turn(_place(tenant, place), message_id)  # another process was faster
    return []


def _place(tenant: str | None, place: int) -> str:
    return f"sends:{tenant}:{place}"
