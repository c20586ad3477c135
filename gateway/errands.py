"""Work that must be done even when the request it belongs to is gone, such as cancelling its jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

T = TypeVar("T")

_log = structlog.stdlib.get_logger("headway.gateway")


class Errands:
    """Keeps such tasks alive, logs the failed ones and waits for the rest when the gateway closes."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run it as a task that the caller's own cancellation does not reach."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def finish(self, within_seconds: float) -> None:
        """Wait for what still runs, then stop it."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=within_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # Fetching the exception also keeps asyncio from reporting it as never retrieved.
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.debug("errand failed", error=repr(error))
