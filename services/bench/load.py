"""Puts one point's load on a target, and keeps what came back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from headway.services.bench.answer import Answer, Outcome, Planned
from headway.services.bench.client_watch import ClientLoad, ClientWatch
from headway.services.bench.open_files import allow_open
from headway.services.bench.plan import Work
from headway.services.bench.prompts import PromptWriter
from headway.services.bench.settings import BenchSettings
from headway.services.bench.target import Now, Ready, Target

PREPARED: Final = 32
"""Requests that are made ready before they are due: their making must not make them late."""
REST_SECONDS: Final = 0.05
"""Of a client in closed loop whose request was refused without a word of when to come again."""
BACKLOG_NUMBERS: Final = 10_000_000
"""From here on, beyond those that arrive: prompts are drawn by number, and none may come twice."""


@dataclass(frozen=True, slots=True)
class Point:
    """One load."""

    name: str
    """Of its place in the run, as prompts and arrivals are drawn by it."""
    rate: float | None = None
    concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of the requests a process sends: number ``number`` of each ``of`` in a row."""

    number: int = 0
    of: int = 1

    def part(self, count: int) -> int:
        """Of so many clients or places."""
        return count * (self.number + 1) // self.of - count * self.number // self.of

    def mine(self, coming: Iterator[Planned]) -> Iterator[Planned]:
        """Of requests that are numbered in order."""
        return (planned for planned in coming if planned.number % self.of == self.number)


WHOLE: Final = Share()


@dataclass(slots=True)
class Loaded:
    """What one point brought. Its window, ``[start, end)`` seconds, is what is measured."""

    point: Point
    start: float
    end: float
    answers: list[Answer] = field(default_factory=list[Answer])
    client: ClientLoad | None = None
    began_monotonic: float = 0.0
    began_unix: float = 0.0
    is_interrupted: bool = False
    parts: tuple[Loaded, ...] = ()
    """What each client process brought, where there were several."""


Watch = Callable[[Loaded, float], None]
"""Is shown the point as it grows, with the seconds since its start."""


class Load:
    """Runs points against one target. ``stop`` ends the running one early: what it has is kept."""

    def __init__(
        self,
        settings: BenchSettings,
        target: Target,
        work: Work,
        writer: PromptWriter,
        share: Share = WHOLE,
    ) -> None:
        self._settings = settings
        self._target = target
        self._work = work
        self._writer = writer
        self._open: set[asyncio.Task[None]] = set()
        self._share = share
        self._most_open = allow_open(max(1, share.part(settings.max_open)))
        self.stop = asyncio.Event()

    async def run(self, point: Point, watch: Watch, began_at: tuple[float, float] | None = None) -> Loaded:
        """Warm up, measure, wait for what is open, give up the rest.

        ``began_at``: the monotonic and the Unix time at which the point begins; None: now.
        """
        settings = self._settings
        loaded = Loaded(point, settings.warmup, settings.warmup + settings.duration)
        loaded.began_monotonic, loaded.began_unix = began_at or (time.monotonic(), time.time())
        began = loaded.began_monotonic

        def now() -> float:
            return time.monotonic() - began

        watching = ClientWatch()
        watching.start()
        beside = asyncio.create_task(_show(loaded, now, watch))
        sending = asyncio.create_task(self._send(loaded, now))
        stopping = asyncio.create_task(self.stop.wait())
        until = loaded.end + settings.drain
        try:
            # In closed loop sending ends with the last answer, and that may never come.
            await asyncio.wait(
                {sending, stopping}, timeout=until - now(), return_when=asyncio.FIRST_COMPLETED
            )
            loaded.client = watching.stop()
            if sending.done():
                sending.result()
                await self._drain(now, until, stopping)
            loaded.is_interrupted = self.stop.is_set()
        finally:
            if loaded.client is None:
                loaded.client = watching.stop()
            loaded.end = min(loaded.end, max(loaded.start, now())) if loaded.is_interrupted else loaded.end
            for task in (sending, stopping, beside):
                task.cancel()
            await self._give_up(now, loaded)
            await asyncio.gather(sending, stopping, beside, return_exceptions=True)
        watch(loaded, now())
        return loaded

    async def _send(self, loaded: Loaded, now: Now) -> None:
        point = loaded.point
        async with asyncio.TaskGroup() as senders:
            if point.concurrency is not None:
                coming = self._share.mine(self._work.closed_loop(f"{self._settings.seed}"))
                for _ in range(self._share.part(point.concurrency)):
                    senders.create_task(self._client(coming, loaded, now))
                return
            coming = self._work.open_loop(point.rate or 1.0, loaded.end, f"{self._settings.seed}")
            senders.create_task(self._dispatch(self._share.mine(coming), loaded, now))
            for places, waiting in backlogs_of(self._work, f"{self._settings.seed}", self._share):
                for _ in range(places):
                    senders.create_task(self._keep_waiting(waiting, loaded, now))

    async def _dispatch(self, coming: Iterator[Planned], loaded: Loaded, now: Now) -> None:
        """Send each when it is due, whatever became of those before."""
        ready: list[tuple[Planned, Ready]] = []
        is_over = False
        while ready or not is_over:
            while not is_over and len(ready) < PREPARED:
                planned = next(coming, None)
                if planned is None:
                    is_over = True
                    break
                ready.append((planned, self._ready(planned, loaded)))
                if ready[0][0].seconds <= now() + 0.002:
                    break
            if not ready:
                return
            planned, request = ready.pop(0)
            # uvloop's timers may be a millisecond early, and what is sent early looks fast.
            while (rest := planned.seconds - now()) > 0:  # noqa: ASYNC110 - a time is waited for, no event
                await asyncio.sleep(rest)
            self._start(Answer(planned), request, loaded, now)
            await asyncio.sleep(0)

    def _ready(self, planned: Planned, loaded: Loaded) -> Ready:
        return self._target.prepare(planned, self._writer.write(planned, loaded.point.name))

    def _start(self, answer: Answer, request: Ready, loaded: Loaded, now: Now) -> asyncio.Task[None] | None:
        loaded.answers.append(answer)
        if len(self._open) >= self._most_open:
            answer.end(Outcome.UNSENT, now(), f"{self._most_open} were open already (--max-open, ulimit -n)")
            return None
        task = asyncio.create_task(request.ask(answer, now))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        return task

    async def _client(self, coming: Iterator[Planned], loaded: Loaded, now: Now) -> None:
        """One of a closed loop: asks, reads to the end, asks again."""
        while now() < loaded.end:
            planned = next(coming)
            request = self._ready(planned, loaded)
            answer = Answer(replace(planned, seconds=now()))
            task = self._start(answer, request, loaded, now)
            if task is not None:
                await asyncio.wait({task})
            if answer.outcome in {Outcome.REFUSED, Outcome.BROKEN, Outcome.UNSENT}:
                await asyncio.sleep(REST_SECONDS)

    async def _keep_waiting(self, coming: Iterator[Planned], loaded: Loaded, now: Now) -> None:
        """One place of a backlog: as soon as its request gets a first token, the next one waits."""
        while now() < loaded.end:
            planned = next(coming)
            request = self._ready(planned, loaded)
            answer = Answer(replace(planned, seconds=now()))
            task = self._start(answer, request, loaded, now)
            while task is not None and not task.done() and not answer.times and now() < loaded.end:
                await asyncio.wait({task}, timeout=0.02)
            if task is None or answer.outcome in {Outcome.REFUSED, Outcome.BROKEN}:
                await asyncio.sleep(REST_SECONDS)

    async def _drain(self, now: Now, until: float, stopping: asyncio.Task[bool]) -> None:
        while self._open and not self.stop.is_set() and (rest := until - now()) > 0:
            await asyncio.wait({*self._open, stopping}, timeout=rest, return_when=asyncio.FIRST_COMPLETED)

    async def _give_up(self, now: Now, loaded: Loaded) -> None:
        """Leave whatever is open; a server that sees it ends these as well."""
        left = list(self._open)
        for task in left:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*left, return_exceptions=True)
        for answer in loaded.answers:
            answer.end(Outcome.UNFINISHED, now(), "it had not ended when the time to wait was over")


def backlogs_of(work: Work, seed: str, share: Share) -> Iterator[tuple[int, Iterator[Planned]]]:
    """A process's part of each tenant's backlog: how many are to wait, and which requests, without end.

    What a request is goes by its number alone, so all processes together send what one would.
    """
    backlogs = work.backlogs()
    for place, backlog in enumerate(backlogs):
        planned = share.mine(work.planned(backlog.demands, f"{seed} {backlog.tenant}"))
        yield share.part(backlog.waiting), _numbered(planned, BACKLOG_NUMBERS + place, len(backlogs))


def _numbered(coming: Iterator[Planned], first: int, step: int) -> Iterator[Planned]:
    return (replace(planned, number=first + step * planned.number) for planned in coming)


async def _show(loaded: Loaded, now: Now, watch: Watch) -> None:
    while True:
        watch(loaded, now())
        await asyncio.sleep(0.5)
