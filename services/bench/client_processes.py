"""Several client processes put one load on a server together: one of them alone is one core.

The requests are those that one process would send: each process sends its share of them, at their times, on
the clock that all processes of a machine have in common. The one that was started is the first of them; it
tells the others when a point begins, and collects what came back.

    parent: point, when it begins ─► child          (a pipe each way; its end is the child's end)
            its answers, its load ◄─ child
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from headway.services.bench.chosen_target import make_target
from headway.services.bench.load import Load, Loaded, Point, Share
from headway.services.bench.plan import make_work
from headway.services.bench.prompts import PromptWriter
from headway.services.bench.settings import BenchSettings
from headway.services.errors import ServiceError

LEAD_SECONDS: Final = 0.3
"""From the word that a point begins to its beginning: all have to have heard it."""
START_SECONDS: Final = 60.0
_STOP: Final = "stop"


@dataclass(frozen=True, slots=True)
class Begin:
    """A point, and the monotonic and the Unix time of its beginning."""

    point: Point
    monotonic: float
    unix: float


class ClientProcesses:
    """The processes beside this one; none where ``settings.client_processes`` is 1."""

    def __init__(self, settings: BenchSettings, writer: PromptWriter, context_tokens: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        for number in range(1, settings.client_processes):
            here, there = context.Pipe()
            share = Share(number, settings.client_processes)
            process = context.Process(
                target=run_client, args=(there, settings, writer, context_tokens, share), daemon=True
            )
            process.start()
            there.close()
            self._connections.append(here)
            self._processes.append(process)

    async def ready(self) -> None:
        """Return once all of them can send. Raises ServiceError."""
        until = time.monotonic() + START_SECONDS
        for connection in self._connections:
            if not await asyncio.to_thread(connection.poll, max(0.0, until - time.monotonic())):
                raise ServiceError(
                    f"a client process was not ready to send within {START_SECONDS:g} s",
                    hint="fewer --client-processes, or a machine that is less busy",
                )
            await self._receive(connection)

    def begin(self, begin: Begin) -> None:
        """Have all of them send their share of a point."""
        self._tell(begin)

    def stop(self) -> None:
        """End the point early; what was measured is kept."""
        self._tell(_STOP)

    async def collect(self) -> list[Loaded]:
        """What each of them brought. Raises ServiceError for one that ended."""
        return [await self._receive(connection) for connection in self._connections]

    def close(self) -> None:
        """End them all."""
        for connection in self._connections:
            connection.close()  # they end by themselves then
        for process in self._processes:
            process.join(5.0)
            if process.is_alive():
                process.kill()
                process.join()

    def _tell(self, what: Begin | str) -> None:
        for connection in self._connections:
            with suppress(OSError):  # it has ended: who collects is told
                connection.send(what)

    @staticmethod
    async def _receive(connection: Connection) -> Any:
        try:
            told = await asyncio.to_thread(connection.recv)
        except (EOFError, OSError):
            raise ServiceError("a client process ended in the middle of the run") from None
        if isinstance(told, ServiceError):
            raise told
        return told


def merged(parts: Sequence[Loaded]) -> Loaded:
    """One point out of what each process brought; its ``parts`` tell them apart."""
    first = parts[0]
    answers = [answer for part in parts for answer in part.answers]
    return Loaded(
        first.point,
        first.start,
        min(part.end for part in parts),
        sorted(answers, key=lambda answer: answer.planned.seconds),
        first.client,
        first.began_monotonic,
        first.began_unix,
        is_interrupted=any(part.is_interrupted for part in parts),
        parts=tuple(parts),
    )


def run_client(
    connection: Connection,
    settings: BenchSettings,
    writer: PromptWriter,
    context_tokens: int | None,
    share: Share,
) -> None:
    """A process beside the first: sends its share of each point that it is told of, until told no more."""
    import uvloop

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C reaches all; the first process tells us
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(connection, settings, writer, context_tokens, share))


async def _serve(
    connection: Connection,
    settings: BenchSettings,
    writer: PromptWriter,
    context_tokens: int | None,
    share: Share,
) -> None:
    target = make_target(settings)
    told: asyncio.Queue[Begin | str | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    """Of the load, whether it is there yet or not: what comes early counts for the first point."""

    def hear() -> None:
        try:
            word = connection.recv()
        except (EOFError, OSError):
            loop.remove_reader(connection.fileno())
            word = None
        if word in (None, _STOP):
            stop.set()
        if word != _STOP:
            told.put_nowait(word)

    loop.add_reader(connection.fileno(), hear)
    try:
        await target.open()
        load = Load(settings, target, make_work(settings, context_tokens), writer, share)
        load.stop = stop
        connection.send("ready")
        while isinstance(begin := await told.get(), Begin):
            connection.send(await load.run(begin.point, lambda _, __: None, (begin.monotonic, begin.unix)))
    except ServiceError as error:
        connection.send(error)
    except BrokenPipeError:
        pass  # the first process is gone
    finally:
        await target.close()
