"""One run: a server, workers and a gateway; jobs that stream; a storm; then calm, and the verdict."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos.link import TcpLink
from tests.chaos.people import People
from tests.chaos.processes import Place
from tests.chaos.schedule import CLIENTS, GATEWAY, Fault, draw
from tests.chaos.storm import Storm
from tests.chaos.verdict import of_outcome, of_server
from tests.chaos.workload import TENANTS, Outcome, draw_orders
from tests.conftest import RedisServer

from headway.queueing.client import Client
from headway.queueing.redis_queue import RedisQueue

AFTERWARDS_SECONDS: Final = 240.0
"""What everything gets to come to its end once the storm is over."""
LIMITS: Final = {"rpm": 1_000_000, "tpm": 100_000_000, "concurrency": 100_000}
"""Never reached: they are there to be reserved against, and to be given back."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is."""

    seed: int = 1
    seconds: float = 1260.0
    jobs: int = 2500
    workers: int = 3
    kind: str = "valkey9"
    every: float = 1.2
    """Seconds between faults, on average."""
    lease_seconds: float = 1.5
    ms_per_step: float = 4.0


@dataclass(slots=True)
class Report:
    """What came of it."""

    options: Options
    schedule: tuple[Fault, ...]
    wrong: list[str] = field(default_factory=list[str])
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict[str, Any])

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        """The figures; of a failed run also what is wrong, and how to repeat it."""
        lines = [
            f"seed {self.options.seed}, {self.seconds:.0f} s, {len(self.schedule)} faults: {self.figures}"
        ]
        if self.wrong:
            lines += [f"{len(self.wrong)} things are wrong:", *(f"  {each}" for each in self.wrong[:50])]
            lines += ["the faults were:", *(f"  {fault}" for fault in self.schedule)]
            lines.append(f"again: python -m tests.chaos {arguments(self.options)}")
        return "\n".join(lines)


def arguments(options: Options) -> str:
    """The command line that draws the same faults and the same jobs."""
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in asdict(options).items())


async def run(
    options: Options, schedule: Sequence[Fault] | None = None, folder: Path | None = None
) -> Report:
    """The whole run. Its logs stay in ``folder``, if one is given."""
    faults = (
        tuple(schedule)
        if schedule is not None
        else draw(
            options.seed,
            options.seconds,
            options.workers,
            lease_seconds=options.lease_seconds,
            every=options.every,
        )
    )
    report = Report(options, faults)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headway-chaos-") as temporary:
        async with _scene(options, folder or Path(temporary)) as scene:
            outcomes = await scene.play(options, faults, report)
            report.wrong += await _verdict(scene.server, outcomes)
            report.figures = figures(outcomes, scene)
    report.seconds = round(time.monotonic() - started, 1)
    return report


@dataclass(slots=True)
class _Scene:
    server: RedisServer
    places: dict[str, Place]
    links: dict[str, TcpLink]
    people: People

    async def play(self, options: Options, faults: Sequence[Fault], report: Report) -> list[Outcome]:
        orders = draw_orders(options.seed, options.jobs, options.seconds)
        outcomes = [Outcome(order) for order in orders]
        watching = [asyncio.create_task(place.watch()) for place in self.places.values()]
        living: list[asyncio.Task[None]] = []

        async def post() -> None:
            loop = asyncio.get_running_loop()
            start = loop.time()
            for order, outcome in zip(orders, outcomes, strict=True):
                await asyncio.sleep(max(0.0, start + order.at_seconds - loop.time()))
                living.append(asyncio.create_task(self.people.live(order, outcome)))

        try:
            await asyncio.gather(post(), Storm(self.server, self.places, self.links).rage(faults))
            _, late = await asyncio.wait(living, timeout=AFTERWARDS_SECONDS)
            if late:
                report.wrong.append(
                    f"{len(late)} jobs had not ended {AFTERWARDS_SECONDS:.0f} s after the storm"
                )
            for task in living:
                task.cancel()
            for ended in await asyncio.gather(*living, return_exceptions=True):
                if isinstance(ended, Exception):
                    report.wrong.append(f"a caller met {type(ended).__name__}: {ended}")
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        return outcomes


@asynccontextmanager
async def _scene(options: Options, folder: Path) -> AsyncIterator[_Scene]:
    server = RedisServer(options.kind, "--appendonly", "yes", "--appendfsync", "always")
    await asyncio.to_thread(server.start)
    names = [*(f"worker {place}" for place in range(options.workers)), GATEWAY, CLIENTS]
    links = {name: TcpLink(str(server.socket)) for name in names}
    places: dict[str, Place] = {}
    try:
        for link in links.values():
            await link.start()
        port = _free_port()
        for name in names[:-1]:
            settings = _settings(options, name, links[name].url, port)
            places[name] = Place("gateway" if name == GATEWAY else "worker", name, folder, settings)
        client = Client(RedisQueue(links[CLIENTS].url), patience_seconds=AFTERWARDS_SECONDS)
        people = People(client, f"http://127.0.0.1:{port}")
        await client.queue.check_server()
        for tenant in TENANTS[:2]:
            await client.queue.tenant_store.set(tenant, LIMITS)
        for place in places.values():
            place.start()
        while len(await client.queue.workers()) < options.workers:
            await asyncio.sleep(0.1)
        yield _Scene(server, places, links, people)
        await people.close()
        await client.close()
    finally:
        for place in places.values():
            place.remove()
        for link in links.values():
            await link.stop()
        await asyncio.to_thread(server.remove)


def _settings(options: Options, name: str, url: str, port: int) -> dict[str, Any]:
    common: dict[str, Any] = {"redis_url": url, "log_format": "json"}
    if name == GATEWAY:
        return common | {"port": port, "drain_seconds": 1.0}
    return common | {
        "model": f"scripted:ms_per_step={options.ms_per_step}",
        "lease_seconds": options.lease_seconds,
        "drain_seconds": 1.0,
        "heartbeat_seconds": 0.5,
        "unacknowledged_tokens": 100,
        "start_timeout_seconds": 60.0,
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _verdict(server: RedisServer, outcomes: Sequence[Outcome]) -> list[str]:
    wrong = [each for outcome in outcomes for each in of_outcome(outcome)]
    found: list[str] = []
    for _ in range(60):  # settlements are taken in twice a second, leases of reservations looked at every ten
        found = await asyncio.to_thread(of_server, server.url, outcomes)
        if not found:
            break
        await asyncio.sleep(1.0)
    return wrong + found


def figures(outcomes: Sequence[Outcome], scene: _Scene) -> dict[str, Any]:
    """Counts that say how hard the run was."""
    readings = [reading for outcome in outcomes for reading in outcome.readings]
    ends = Counter(
        reading.ends[0][0] for outcome in outcomes for reading in outcome.readings[:1] if reading.ends
    )
    return {
        "jobs": len(outcomes),
        "ends": dict(ends),
        "readers": len(readings),
        "reconnects": sum(reading.reconnects for reading in readings),
        "posts": sum(outcome.tries for outcome in outcomes),
        "tokens": sum(reading.cursors[-1][0] for reading in readings if reading.cursors),
        "starts": {name: place.starts for name, place in scene.places.items()},
        "unexpected_ends": [each for place in scene.places.values() for each in place.unexpected_ends],
    }
