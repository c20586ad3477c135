"""The model and the code agree, step by step, so that neither can drift away from the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest
import redis
from tests.model.driver import MODEL, Driver, Names
from tests.model.exploration import Kind, explore
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


def answers(kinds: Iterable[Kind]) -> set[tuple[str, object]]:
    """Calls and events with their answers, whoever heard them."""
    return {(name, answer) for name, fate, answer in kinds if fate != "late" or answer is not False}


async def follow(walker: Walker, driver: Driver, room: int) -> None:
    """One way, step by step."""
    driver.room = room
    taken: list[Action] = []
    for action, after in walker.way(STEPS):
        taken.append(action)
        try:
            await driver.take(action, after)
        except AssertionError as error:
            ways = "\n".join(f"{at}. {each}" for at, each in enumerate(taken, 1))
            raise AssertionError(
                f"code and model differ after\n{ways}\nmodel: {after.server}\n{error}"
            ) from error


@pytest.mark.parametrize(("bounds", "ways"), [(ONE_JOB, 110), (TWO_JOBS, 40)], ids=["one job", "two jobs"])
async def test_a_server_answers_as_the_model_does(
    bounds: Bounds, ways: int, shared_redis: Callable[[str], RedisServer]
) -> None:
    walker = Walker(bounds, Random(20_261_130))
    for way in range(ways):
        server, names = shared_redis(("redis7", "valkey9")[way % 2]), Names()
        queue = RedisQueue(server.url, SETTINGS, rng=names)
        await follow(walker, Driver(queue, names, ServersFate(server.url)), bounds.room)
        await queue.close()
    if bounds is ONE_JOB:
        missing = answers(explore(SMALL, Rules()).kinds) - answers(walker.tried)
        assert not missing, "these answers were never compared"


SMALL: Final = Bounds(tokens=2, has_late_calls=True, has_slow_news=False, has_drain=True, workers=1)


@pytest.mark.parametrize(("bounds", "ways"), [(ONE_JOB, 150), (TWO_JOBS, 80)], ids=["one job", "two jobs"])
async def test_a_queue_in_memory_answers_as_the_model_does(bounds: Bounds, ways: int) -> None:
    walker = Walker(bounds, Random(20_261_130), happens_in_memory)
    for _ in range(ways):
        fate, names = MemorysFate(), Names()
        fate.queue = MemoryQueue(SETTINGS, clock=lambda fate=fate: fate.now, rng=names)  # type: ignore[misc] # bound now
        await follow(walker, Driver(fate.queue, names, fate), bounds.room)
