"""What the order of turns at batches goes by: which are open, whose they are, at which somebody works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import orjson

from headway.queueing.keys import BATCHES_OPEN, TENANTS_SERVED, BatchKeys
from headway.queueing.node import Argument, Reply

if TYPE_CHECKING:
    from headway.queueing.batch_store import Commands

_AT_ONCE: Final = 1000
"""Commands in one round trip."""


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that is to be worked on. Times are the server's clock in milliseconds."""

    batch_id: str
    tenant: str
    since_ms: int
    """When its last turn began; when it was accepted, if it had none."""
    is_running: bool
    """Somebody has a turn at it now."""


class BatchTurns:
    """What the order of turns goes by. Nothing depends on it but who is served first."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def open(self, tenants: Mapping[str, str]) -> list[OpenBatch]:
        """Every open batch, the one that has waited longest first; ``tenants``: of batches seen before."""
        flat = cast("list[bytes]", await self._commands.call("ZRANGE", BATCHES_OPEN, 0, -1, "WITHSCORES"))
        since = {each.decode(): int(float(score)) for each, score in zip(flat[::2], flat[1::2], strict=True)}
        new = [each for each in since if each not in tenants]
        records = await self._all([("HGET", BatchKeys(each).record, "created") for each in new])
        names = dict(tenants) | {each: _tenant(record) for each, record in zip(new, records, strict=True)}
        turns = await self._all([("GET", BatchKeys.turn(f"run:{each}")) for each in since])
        return [
            OpenBatch(each, names[each], since[each], isinstance(turn, bytes))
            for each, turn in zip(since, turns, strict=True)
        ]

    async def served(self) -> dict[str, int]:
        """When each tenant's last turn began."""
        flat = cast("list[bytes]", await self._commands.call("HGETALL", TENANTS_SERVED))
        return {name.decode(): int(at) for name, at in zip(flat[::2], flat[1::2], strict=True)}

    async def begin(self, batch: OpenBatch, now_ms: int) -> None:
        """Note that a turn at it begins now: after it come those that have waited longer."""
        await self._all(
            [
                ("ZADD", BATCHES_OPEN, "XX", now_ms, batch.batch_id),
                ("HSET", TENANTS_SERVED, batch.tenant, now_ms),
            ]
        )

    async def forget(self, tenants: Sequence[str]) -> None:
        """These have no open batch any more."""
        await self._all([("HDEL", TENANTS_SERVED, tenant) for tenant in tenants])

    async def _all(self, commands: Sequence[tuple[Argument, ...]]) -> list[Reply]:
        replies: list[Reply] = []
        for start in range(0, len(commands), _AT_ONCE):
            replies += await self._commands.pipeline(commands[start : start + _AT_ONCE])
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies


def _tenant(record: Reply) -> str:
    """The tenant that a batch's record names; "" where it names none: whoever works on it will see that."""
    try:
        return str(orjson.loads(record)["tenant"]) if isinstance(record, bytes) else ""
    except (ValueError, KeyError, TypeError):
        return ""
