"""The model and the code agree, step by step, so that neither can drift away from the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest
import redis
from tests.conftest import KINDS
from tests.model.driver import MODEL, Driver, Names
from tests.model.exploration import explore
from tests.model.moves import Step
from tests.model.states import Action, Bounds, Rules
from tests.model.walk import Walker

from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.redis_queue import RedisQueue
from headway.queueing.settings import QueueSettings

if TYPE_CHECKING:
    from tests.conftest import RedisServer

LEASE_SECONDS: Final = 1000.0
SETTINGS: Final = QueueSettings(
    lease_seconds=LEASE_SECONDS, max_attempts=2, stream_retention_seconds=1e6, record_retention_seconds=1e6
)
ONE_JOB: Final = Bounds(tokens=3, failovers=1, has_reader=True, has_slow_news=False)
TWO_JOBS: Final = ONE_JOB._replace(jobs=2, room=2)
SMALL: Final = Bounds(tokens=1, has_slow_news=False)
FAILOVER: Final = Bounds(
    workers=1, tokens=2, failovers=1, has_reader=True, has_cancel=False, has_late_calls=False, has_drain=False
)
STEPS: Final = 30


class ServersFate:
    """Time and failovers on a real server, by its own commands."""

    def __init__(self, url: str) -> None:
        self._raw: Any = redis.Redis.from_url(url)
        self._snapshot: list[tuple[bytes, int, bytes]] = []
        self._tag = f"{{{MODEL}:0}}"

    async def lease_passes(self, key: str, alive: list[tuple[str, str]]) -> None:
        del alive  # their leases are other members
        self._raw.zadd(f"lease:{self._tag}", {key: 1})

    async def claim_is_forgotten(self, worker: str) -> None:
        self._raw.delete(f"c:{self._tag}:{worker}")

    async def replica_lags(self) -> None:
        keys = self._raw.keys("*")
        self._snapshot = [(key, max(0, self._raw.pttl(key)), self._raw.dump(key)) for key in keys]

    async def failover(self) -> None:
        self._raw.flushall()
        for key, left_ms, value in self._snapshot:
            self._raw.restore(key, left_ms, value)


class MemorysFate:
    """Time in memory: the clock moves, and who should keep its lease renews it."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.queue: MemoryQueue

    async def lease_passes(self, key: str, alive: list[tuple[str, str]]) -> None:
        del key  # it is the one who does not renew
        self.now += LEASE_SECONDS + 1
        await self.queue.renew(alive)

    async def claim_is_forgotten(self, worker: str) -> None:
        raise NotImplementedError

    async def replica_lags(self) -> None:
        raise NotImplementedError

    async def failover(self) -> None:
        raise NotImplementedError


def happens_in_memory(action: Action) -> bool:
    """No reply is lost inside a process, and there is no replica."""
    is_claim = action.call is not None and action.call.function == "claim"
    return not (is_claim and action.fate != "ok") and action.name not in (
        "replica lags",
        "claim is forgotten",
    )


async def follow(way: Iterable[Step], driver: Driver) -> None:
    """One way, step by step."""
    taken: list[Action] = []
    for action, after in way:
        taken.append(action)
        try:
            await driver.take(action, after)
        except AssertionError as error:
            ways = "\n".join(f"{at}. {each}" for at, each in enumerate(taken, 1))
            raise AssertionError(
                f"code and model differ after\n{ways}\nmodel: {after.server}\n{error}"
            ) from error


class Servers:
    """Drivers on emptied servers, in turns on either product."""

    def __init__(self, shared_redis: Callable[[str], RedisServer]) -> None:
        self._shared_redis = shared_redis
        self._turn = 0

    @asynccontextmanager
    async def driver(self, bounds: Bounds) -> AsyncIterator[Driver]:
        self._turn += 1
        server, names = self._shared_redis(KINDS[self._turn % len(KINDS)]), Names()
        queue = RedisQueue(server.url, SETTINGS, rng=names)
        try:
            yield Driver(queue, names, ServersFate(server.url), bounds.room)
        finally:
            await queue.close()


@pytest.fixture
def servers(shared_redis: Callable[[str], RedisServer]) -> Servers:
    return Servers(shared_redis)


def driver_in_memory(bounds: Bounds) -> Driver:
    fate, names = MemorysFate(), Names()
    fate.queue = MemoryQueue(SETTINGS, clock=lambda: fate.now, rng=names)
    return Driver(fate.queue, names, fate, bounds.room)


@pytest.mark.parametrize("bounds", [SMALL, FAILOVER], ids=["late calls", "a failover"])
async def test_every_kind_of_step_is_answered_as_in_the_model(bounds: Bounds, servers: Servers) -> None:
    """A shortest way to each, so that nothing depends on luck."""
    walker = Walker(bounds, Random(1))
    found = explore(bounds, Rules())
    assert found.broken is None, str(found)
    assert len(found.ways) > 20
    for kind, worlds in found.ways.items():
        async with servers.driver(bounds) as driver:
            await follow(walker.along(worlds, kind), driver)


@pytest.mark.parametrize(("bounds", "ways"), [(ONE_JOB, 60), (TWO_JOBS, 30)], ids=["one job", "two jobs"])
async def test_a_server_answers_as_the_model_does(bounds: Bounds, ways: int, servers: Servers) -> None:
    walker = Walker(bounds, Random(20_261_130))
    for _ in range(ways):
        async with servers.driver(bounds) as driver:
            await follow(walker.way(STEPS), driver)


@pytest.mark.parametrize(("bounds", "ways"), [(ONE_JOB, 80), (TWO_JOBS, 50)], ids=["one job", "two jobs"])
async def test_a_queue_in_memory_answers_as_the_model_does(bounds: Bounds, ways: int) -> None:
    walker = Walker(bounds, Random(20_261_130), happens_in_memory)
    for _ in range(ways):
        await follow(walker.way(STEPS), driver_in_memory(bounds))
