"""What consoles watch, looked up once for all of them: the queue's figures, and the workers' steps.

While nobody watches nothing is asked, and the workers make no views. A console that reads slowly gets the
newest figures when it comes back; of the steps at most what fits into BACKLOG frames.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Final

import orjson
import structlog

from headway.gateway.errors import unavailable
from headway.gateway.model_directory import ModelDirectory
from headway.gateway.sse import frame
from headway.gateway.stopping import Stopping
from headway.queueing.errors import QueueingError
from headway.queueing.figures import look
from headway.queueing.protocol import Queue
from headway.queueing.step_views import VIEWS_KEPT, StepView

_log = structlog.stdlib.get_logger("headway.gateway")

STEPS_SECONDS: Final = 0.4
FIGURES_SECONDS: Final = 1.0
LOOK_SHARE: Final = 0.25
"""A look at a large fleet takes its time, most of it the server's: 53 ms of ours for 100 tenants and 322
running jobs. So that it stays a small part, the next one waits for three times as long as it took."""
WATCH_SECONDS: Final = 5.0
"""For how long one word keeps the workers showing."""
MOST_CONSOLES: Final = 32
BACKLOG: Final = 256
"""Frames of steps that wait for one console."""


class Watcher:
    """One console's place: what it has not read yet."""

    def __init__(self, stopping: Stopping) -> None:
        self._stopping = stopping
        self._latest: dict[str, bytes] = {}
        self._steps: deque[bytes] = deque(maxlen=BACKLOG)
        self._news = asyncio.Event()

    def put_latest(self, kind: str, text: bytes) -> None:
        """A frame that replaces the unread one of its kind."""
        self._latest[kind] = text
        self._news.set()

    def put_steps(self, text: bytes) -> None:
        """A frame of steps behind the unread ones."""
        self._steps.append(text)
        self._news.set()

    async def next_frames(self, wait_seconds: float) -> bytes | None:
        """See ``FrameSource``. None when the gateway stops: a console must not hold up its drain."""
        if self._stopping.is_draining:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                await self._news.wait()
        self._news.clear()
        frames = b"".join((*self._latest.values(), *self._steps))
        self._latest.clear()
        self._steps.clear()
        return frames


class ConsoleFeed:
    """Feeds all consoles of one gateway process."""

    def __init__(
        self, queue: Queue, models: ModelDirectory, stopping: Stopping, wall_clock: Callable[[], float]
    ) -> None:
        self._queue = queue
        self._models = models
        self._stopping = stopping
        self._wall_clock = wall_clock
        self._watchers: set[Watcher] = set()
        self._looking: list[asyncio.Task[None]] = []
        self._latest: dict[str, bytes] = {}
        self._shown: dict[str, deque[bytes]] = {}
        """By worker: the newest frames, for who comes next."""
        self._places: dict[str, str] = {}

    @contextlib.contextmanager
    def watching(self) -> Generator[Watcher]:
        """A place for one console; raises ApiError 503 when MOST_CONSOLES watch already."""
        if len(self._watchers) >= MOST_CONSOLES:
            raise unavailable(
                f"{MOST_CONSOLES} consoles watch this gateway already: close one",
                reason="too_many_consoles",
                retry_after_seconds=30,
            )
        watcher = Watcher(self._stopping)
        for kind, text in self._latest.items():
            watcher.put_latest(kind, text)
        for texts in self._shown.values():
            for text in texts:
                watcher.put_steps(text)
        self._watchers.add(watcher)
        self._begin()
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
            if not self._watchers:
                self._end()

    def _begin(self) -> None:
        if not self._looking:
            self._looking = [
                asyncio.create_task(self._forever(self._look_at_steps, STEPS_SECONDS)),
                asyncio.create_task(self._forever(self._look_at_figures, FIGURES_SECONDS)),
            ]

    def _end(self) -> None:
        for task in self._looking:
            task.cancel()
        self._looking = []
        self._latest.clear()
        self._shown.clear()
        self._places.clear()

    async def _forever(self, look_once: Callable[[], Awaitable[None]], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                await look_once()
            except QueueingError as error:
                self._tell("trouble", frame({"message": str(error)}, event="trouble"))
            except Exception:
                _log.exception("console feed failed")
                self._tell("trouble", frame({"message": "the gateway's log says why"}, event="trouble"))
            took = loop.time() - started
            await asyncio.sleep(max(seconds - took, took / LOOK_SHARE - took))

    async def _look_at_figures(self) -> None:
        figures = await look(self._queue, round(self._wall_clock() * 1000))
        self._latest.pop("trouble", None)
        self._tell("figures", frame(figures.to_json(), event="figures"))

    async def _look_at_steps(self) -> None:
        await self._queue.step_views.watch(WATCH_SECONDS)
        workers = [card.worker_id for card in (await self._models.fleet()).workers]
        after = {worker: self._places.get(worker, "") for worker in workers}
        for gone in self._shown.keys() - after.keys():
            del self._shown[gone]
            del self._places[gone]
        for view in await self._queue.step_views.shown(after):
            self._places[view.worker_id] = view.place
            text = _steps_frame(view)
            if text is None:
                continue
            self._shown.setdefault(view.worker_id, deque(maxlen=VIEWS_KEPT)).append(text)
            for watcher in self._watchers:
                watcher.put_steps(text)

    def _tell(self, kind: str, text: bytes) -> None:
        self._latest[kind] = text
        for watcher in self._watchers:
            watcher.put_latest(kind, text)


def _steps_frame(view: StepView) -> bytes | None:
    """A view as an event, passed on as it is; None for what is not ours."""
    try:
        content = orjson.loads(view.text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(content, dict):
        return None
    # No line break can stand in a JSON text but between its parts.
    text = view.text.replace(b"\n", b" ").replace(b"\r", b" ")
    return b'event: steps\ndata: {"worker":%s,"view":%s}\n\n' % (orjson.dumps(view.worker_id), text)
