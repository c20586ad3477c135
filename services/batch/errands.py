"""What the service's tasks do, apart from Celery: see what is due, work on a batch, send a message, tidy."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from headway.queueing.errors import QueueingError
from headway.queueing.protocol import Queue
from headway.services.batch.batch_metrics import BatchMetrics
from headway.services.batch.message_order import let_go, messages_to_send
from headway.services.batch.response_ends import tell_response_ends
from headway.services.batch.retention import sweep
from headway.services.batch.settings import BatchSettings
from headway.services.batch.storage import Storage
from headway.services.batch.turn import give_way, take_turn
from headway.services.batch.turn_line import TurnLine
from headway.services.batch.usage_books import write_usage
from headway.services.batch.webhook_delivery import deliver
from headway.services.batch.webhook_post import WebhookPost
from headway.services.batch.work import Surroundings
from headway.services.connection import close_queue, open_queue

_log = structlog.stdlib.get_logger("headway.batch")

T = TypeVar("T")

GIVES_WAY_SECONDS = 10.0
"""A turn that nobody ended by then is asked to end again."""
SENDS_AT_ONCE = 8
"""Tries to deliver messages in a process: beside turns, never in their places."""
TURNS_AT_ONCE = 16
"""Asked for in one look: more than a few processes have places for."""
SELDOM_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be done now."""

    turns: int
    """At batches that wait for one: whoever has a place free takes the next in line."""
    messages: tuple[str, ...]


class Errands:
    """Does them, each on a connection of its own. May be used by several threads."""

    def __init__(self, settings: BatchSettings) -> None:
        self.metrics = BatchMetrics()
        self._settings = settings
        self._storage = Storage(settings.files)
        self._post = WebhookPost(allows_private=settings.allows_private_webhooks)
        self._stops = threading.Event()
        self._sends = threading.BoundedSemaphore(SENDS_AT_ONCE)
        self._places = threading.BoundedSemaphore(settings.concurrency)
        self._line = TurnLine(time.monotonic)

    def stop(self) -> None:
        """Bring running turns to their end soon: others go on where they are."""
        self._stops.set()

    def look(self) -> Due:
        """What nobody does yet, and is to be asked for now."""
        return self._with_queue(self._look)

    def take_turn(self) -> str | None:
        """A turn at the batch that is next in line; its id, or None: none waits, or no place is free here.

        Which one is decided here and not by who asked: by now another tenant's may be next.
        """
        if self._stops.is_set() or not self._places.acquire(blocking=False):
            return None
        try:
            return self._with_queue(self._next_turn)
        finally:
            self._places.release()

    def send(self, message_id: str) -> bool:
        """One try to deliver a webhook's message; False: no place is free, it is asked for again."""
        if not self._sends.acquire(blocking=False):
            self._with_queue(lambda queue: self._let_go(queue, message_id))
            return False
        try:
            tried = self._with_queue(lambda queue: deliver(queue, self._post, message_id))
        finally:
            self._sends.release()
        if tried is not None:
            self.metrics.tried(tried)
        return True

    def tidy(self) -> None:
        """Remove what has expired, and what killed processes left."""
        self._with_queue(lambda queue: self._seldom(queue, "tidy", self._sweep))

    def keep_books(self) -> None:
        """Write down what each tenant used on days that are over."""
        self._with_queue(lambda queue: self._seldom(queue, "books", self._write_usage))

    async def _let_go(self, queue: Queue, message_id: str) -> None:
        message = await queue.webhook_store.message(message_id)
        await let_go(queue, message_id, None if message is None else message.tenant)

    async def _sweep(self, queue: Queue) -> None:
        self.metrics.swept(await sweep(queue, self._storage, self._settings.step.file_keep_seconds))

    async def _write_usage(self, queue: Queue) -> None:
        await write_usage(queue, self._storage)

    async def _seldom(self, queue: Queue, what: str, act: Callable[[Queue], Awaitable[None]]) -> None:
        """Do something, unless another process of the fleet has done it lately."""
        if not await queue.batch_store.take_turn(what, "", SELDOM_SECONDS):
            return
        is_done = False
        try:
            await act(queue)
            is_done = True
        finally:
            self.metrics.errand(what, is_done=is_done, now_unix=time.time())

    async def _look(self, queue: Queue) -> Due:
        store = queue.batch_store
        waiting = await self._line.look(store)
        for batch_id in self._line.to_give_way():
            await store.take_turn(give_way(batch_id), "", GIVES_WAY_SECONDS)
        await tell_response_ends(queue)
        messages = await messages_to_send(queue, await store.now_ms())
        return Due(min(waiting, TURNS_AT_ONCE), messages)

    async def _next_turn(self, queue: Queue) -> str | None:
        batch_id = await self._line.next(queue.batch_store)
        if batch_id is None:
            return None
        around = Surroundings(
            queue, self._storage, self._settings.step, time.monotonic, self._stops.is_set, self.metrics
        )
        try:
            await take_turn(around, batch_id)
            self.metrics.turn(is_broken=False)
        except (OSError, QueueingError) as error:  # somebody else's fault, and over one day; all else is ours
            self.metrics.turn(is_broken=True)
            _log.warning("batch waits", batch=batch_id, error=str(error))
            await asyncio.sleep(1.0)
        return batch_id

    def _with_queue(self, act: Callable[[Queue], Awaitable[T]]) -> T:
        async def run() -> T:
            queue = open_queue(self._settings.redis_url)
            try:
                return await act(queue)
            finally:
                await close_queue(queue)

        return asyncio.run(run())
