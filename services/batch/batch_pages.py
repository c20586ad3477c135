"""The pages of a process of the batch service: /metrics, and /healthz and /readyz for whoever restarts it.

They are served from a thread of their own, since Celery has the main one; so an answer says nothing about
Celery, which is why its loop tells here that it comes round.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from headway.queueing.errors import QueueingError
from headway.queueing.protocol import Queue
from headway.services.batch.batch_metrics import BatchMetrics, FleetFigures
from headway.services.connection import close_queue, open_queue
from headway.services.errors import StartError
from headway.services.worker_http import WorkerHttp

LOOK_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 300.0
"""Celery's loop rests while the broker is away, which a restart would not mend: patience before that."""


class BatchPages:
    """Serves the pages until stopped."""

    def __init__(self, redis_url: str, metrics: BatchMetrics, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds."""
        self._redis_url = redis_url
        self._metrics = metrics
        self._clock = clock
        self._takes_tasks = self._leaves = False
        self._heard = clock()
        self._bound: Future[int] = Future()
        self._stop: Callable[[], object] | None = None

    def start(self, host: str, port: int) -> int:
        """Serve; port 0 takes a free one. Returns the port; raises StartError when it is taken."""
        threading.Thread(target=self._run, args=(host, port), name="pages", daemon=True).start()
        try:
            return self._bound.result()
        except OSError as error:
            raise StartError(
                f"cannot serve metrics on {host}:{port}: {error.strerror}",
                hint="--metrics-port 0 takes a free port",
            ) from None

    def stop(self) -> None:
        """Serve nothing more."""
        if self._stop is not None:
            self._stop()

    def came_round(self) -> None:
        """Celery's loop turns, and takes tasks."""
        self._heard, self._takes_tasks = self._clock(), not self._leaves

    def leave(self) -> None:
        """No more tasks are taken."""
        self._takes_tasks, self._leaves = False, True

    def _run(self, host: str, port: int) -> None:
        asyncio.run(self._serve(host, port))

    async def _serve(self, host: str, port: int) -> None:
        http = WorkerHttp(self._metrics.render, self._health, self._readiness)
        try:
            bound = await http.start(host, port)
        except OSError as error:
            self._bound.set_exception(error)
            return
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(stopped.set)
        self._bound.set_result(bound)
        looking = asyncio.create_task(self._look())
        await stopped.wait()
        looking.cancel()
        await http.close()

    async def _look(self) -> None:
        """Keep the fleet's figures fresh, as long as the queue answers."""
        queue = open_queue(self._redis_url)
        try:
            while True:
                try:
                    self._metrics.fleet = await fleet_figures(queue)
                except QueueingError:
                    self._metrics.fleet = None
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._metrics.fleet = None  # whatever ends it: figures that nobody renews say nothing
            await close_queue(queue)

    def _health(self) -> tuple[bool, str]:
        silent = self._clock() - self._heard
        if silent > SILENT_SECONDS:
            return False, f"Celery has taken no task for {silent:.0f} s"
        return True, "ok"

    def _readiness(self) -> tuple[bool, str]:
        if not self._takes_tasks:
            return False, "takes no tasks"
        return (True, "ready") if self._metrics.fleet is not None else (False, "the queue is away")


async def fleet_figures(queue: Queue) -> FleetFigures:
    """What the queue's records say now. Raises QueueUnavailableError."""
    store = queue.batch_store
    now_ms = await store.now_ms()
    oldest_ms = await store.oldest_open_ms()
    due, all_messages = await queue.webhook_store.count(now_ms)
    return FleetFigures(
        open_batches=await store.count_open(),
        oldest_seconds=0.0 if oldest_ms is None else max(0, now_ms - oldest_ms) / 1000,
        due_messages=due,
        waiting_messages=max(0, all_messages - due),
    )
