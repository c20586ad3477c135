"""What the producers', consumers' and upkeep sides of RedisQueue share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby
from random import Random, SystemRandom
from typing import Any, cast

from headway.queueing.claims import Fenced
from headway.queueing.ids import JobId
from headway.queueing.keys import LaneKeys
from headway.queueing.protocol import Reaped
from headway.queueing.server import Argument, Reply, Server
from headway.queueing.settings import DEFAULTS, QueueSettings


class RedisSide:
    """A server, the settings, and the source of names and tokens.

    ``clock`` (seconds since the epoch) only names jobs: every time that matters is the server's.
    """

    def __init__(
        self,
        url: str,
        settings: QueueSettings = DEFAULTS,
        *,
        clock: Callable[[], float] = time.time,
        rng: Random | None = None,
    ) -> None:
        self._server = Server(url)
        self._settings = settings
        self._clock = clock
        self._rng = rng or SystemRandom()

    @property
    def _keeps(self) -> tuple[int, int]:
        """Milliseconds for which stream and record are kept after the end."""
        return (
            milliseconds(self._settings.stream_retention_seconds),
            milliseconds(self._settings.record_retention_seconds),
        )

    @property
    def _limits(self) -> tuple[int, ...]:
        """What a new job is accepted under: the optional arguments of the submitting functions."""
        settings = self._settings
        return (
            settings.max_queued_jobs,
            milliseconds(settings.idempotency_seconds),
            milliseconds(settings.record_retention_seconds),
            settings.max_queued_tokens,
            milliseconds(settings.max_wait_seconds),
            milliseconds(settings.patience_seconds),
        )

    async def _reap_lane(self, lane: str) -> Reaped:
        requeued, dead = await self._reap_reply(lane)
        return reaped(lane, requeued, dead)

    async def _reap_reply(self, lane: str, *more: Argument) -> list[Any]:
        reply = await self._server.fcall(
            "headway_reap", LaneKeys(lane).tag, self._settings.max_attempts, *self._keeps, *more
        )
        return cast("list[Any]", reply)

    async def _fenced(
        self,
        function: str,
        jobs: Sequence[tuple[JobId, tuple[Argument, ...]]],
        *leading: Argument,
    ) -> tuple[Fenced, ...]:
        """One call per lane with all its jobs; outcomes in the order of the jobs."""
        outcomes: dict[int, Fenced] = {}
        by_lane = sorted(range(len(jobs)), key=lambda at: jobs[at][0].lane)
        groups = [list(group) for _, group in groupby(by_lane, key=lambda at: jobs[at][0].lane)]
        calls = [
            (LaneKeys(jobs[group[0]][0].lane).tag, *leading, *(part for at in group for part in jobs[at][1]))
            for group in groups
        ]
        for group, reply in zip(groups, await self._server.fcalls(function, calls), strict=True):
            assert isinstance(reply, list)
            outcomes.update(zip(group, map(fenced, reply), strict=True))
        return tuple(outcomes[at] for at in range(len(jobs)))


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, at least one: Redis takes neither fractions nor zero as a lifetime."""
    return max(1, round(seconds * 1000))


def fenced(reply: Reply) -> Fenced:
    """The outcome that a function answered."""
    assert isinstance(reply, bytes)
    return Fenced(reply.decode())


def reaped(lane: str, requeued: Reply, dead: Reply) -> Reaped:
    """The reply of a reap."""
    return Reaped(_job_ids(lane, requeued), _job_ids(lane, dead))


def _job_ids(lane: str, keys: Reply) -> tuple[str, ...]:
    assert isinstance(keys, list)
    return tuple(f"{lane}:{key.decode()}" for key in keys if isinstance(key, bytes))
