"""What the service's tasks do, apart from Celery: see what is due, work on a batch, send a message, tidy."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import structlog

from headway.queueing.errors import QueueingError, QueueUnavailableError
from headway.queueing.protocol import Queue
from headway.services.batch.retention import sweep
from headway.services.batch.settings import BatchSettings
from headway.services.batch.storage import Storage
from headway.services.batch.turn import take_turn
from headway.services.batch.usage_books import write_usage
from headway.services.batch.webhook_delivery import deliver
from headway.services.batch.webhook_post import WebhookPost
from headway.services.batch.work import Surroundings
from headway.services.connection import close_queue, open_queue

_log = structlog.stdlib.get_logger("headway.batch")

T = TypeVar("T")

ASKED_SECONDS = 10.0
"""A task that was sent and lost with its worker is sent again after this long."""
DUE_AT_ONCE = 100
SELDOM_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be done now."""

    batches: tuple[str, ...]
    messages: tuple[str, ...]


class Errands:
    """Does them, each on a connection of its own. May be used by several threads."""

    def __init__(self, settings: BatchSettings) -> None:
        self._settings = settings
        self._storage = Storage(settings.files)
        self._post = WebhookPost(allows_private=settings.allows_private_webhooks)
        self._stops = threading.Event()

    def stop(self) -> None:
        """Bring running turns to their end soon: others go on where they are."""
        self._stops.set()

    def look(self) -> Due:
        """What nobody does yet, and is to be asked for now. Whoever asks next in a few seconds sees less."""
        return self._with_queue(_look)

    def work_on(self, batch_id: str) -> bool:
        """A turn at a batch; whether it has come to its end."""
        return self._with_queue(lambda queue: self._turn(queue, batch_id))

    def send(self, message_id: str) -> None:
        """One try to deliver a webhook's message."""
        self._with_queue(lambda queue: deliver(queue, self._post, message_id))

    def tidy(self) -> None:
        """Remove what has expired, and what killed processes left."""
        self._with_queue(lambda queue: self._seldom(queue, "tidy", self._sweep))

    def keep_books(self) -> None:
        """Write down what each tenant used on days that are over."""
        self._with_queue(lambda queue: self._seldom(queue, "books", self._write_usage))

    async def _sweep(self, queue: Queue) -> None:
        await sweep(queue, self._storage, self._settings.step.file_keep_seconds)

    async def _write_usage(self, queue: Queue) -> None:
        await write_usage(queue, self._storage)

    async def _seldom(self, queue: Queue, what: str, act: Callable[[Queue], Awaitable[None]]) -> None:
        """Do something, unless another process of the fleet has done it lately."""
        if await queue.batch_store.take_turn(what, "", SELDOM_SECONDS):
            await act(queue)

    async def _turn(self, queue: Queue, batch_id: str) -> bool:
        around = Surroundings(queue, self._storage, self._settings.step, time.monotonic, self._stops.is_set)
        try:
            return await take_turn(around, batch_id)
        except (OSError, QueueingError) as error:
            _log.warning("batch waits", batch=batch_id, error=str(error))
            await asyncio.sleep(1.0)
            return False
        finally:
            with suppress(QueueUnavailableError):  # then it lapses
                await queue.batch_store.end_turn(f"asked:{batch_id}", "")

    def _with_queue(self, act: Callable[[Queue], Awaitable[T]]) -> T:
        async def run() -> T:
            queue = open_queue(self._settings.redis_url)
            try:
                return await act(queue)
            finally:
                await close_queue(queue)

        return asyncio.run(run())


async def _look(queue: Queue) -> Due:
    store = queue.batch_store
    batches: list[str] = []
    for batch_id in await store.open_batches():
        if await store.has_turn(f"run:{batch_id}"):
            continue
        if await store.take_turn(f"asked:{batch_id}", "", ASKED_SECONDS):
            batches.append(batch_id)
    due = await queue.webhook_store.due(await store.now_ms(), DUE_AT_ONCE)
    messages = [each for each in due if await store.take_turn(f"asked:{each}", "", ASKED_SECONDS)]
    return Due(tuple(batches), tuple(messages))
