"""The few commands of a server that stores of records are made of, on this process's own memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headway.queueing.node import Argument, Reply


class MemoryCommands:
    """Answers as a server does to the commands named here, and to no other (NotImplementedError).

    ``clock`` gives seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._values: dict[str, Any] = {}
        self._lapse_ms: dict[str, float] = {}

    async def call(self, *command: Argument) -> Reply:
        """One command."""
        name, *rest = command
        act: Callable[..., Reply] | None = getattr(self, f"_{str(name).lower()}", None)
        if act is None:
            raise NotImplementedError(f"{name!r} is not among the commands kept in memory")
        if not rest:
            return act()
        key, *arguments = rest
        if self._lapse_ms.get(str(key), float("inf")) <= self._clock() * 1000:
            self._del(str(key))
        return act(str(key), *map(_raw, arguments))

    async def pipeline(self, commands: Iterable[tuple[Argument, ...]]) -> list[Reply]:
        """Several, one after the other."""
        return [await self.call(*command) for command in commands]

    # -- strings --------------------------------------------------------------------------------------

    def _time(self) -> Reply:
        micros = int(self._clock() * 1e6)
        return [str(micros // 1_000_000).encode(), str(micros % 1_000_000).encode()]

    def _get(self, key: str) -> Reply:
        return self._values.get(key)

    def _set(self, key: str, value: bytes, *options: bytes) -> Reply:
        if b"NX" in options and key in self._values:
            return None
        self._values[key] = value
        self._lapse_ms.pop(key, None)
        if b"PX" in options:
            self._pexpire(key, options[options.index(b"PX") + 1])
        return b"OK"

    def _del(self, key: str) -> Reply:
        self._lapse_ms.pop(key, None)
        return int(self._values.pop(key, None) is not None)

    def _pexpire(self, key: str, millis: bytes) -> Reply:
        if key not in self._values:
            return 0
        self._lapse_ms[key] = self._clock() * 1000 + float(millis)
        return 1

    # -- hashes ---------------------------------------------------------------------------------------

    def _hset(self, key: str, field: bytes, value: bytes) -> Reply:
        is_new = field not in self._hash(key)
        self._hash(key)[field] = value
        return int(is_new)

    def _hsetnx(self, key: str, field: bytes, value: bytes) -> Reply:
        return 0 if field in self._hash(key) else self._hset(key, field, value)

    def _hget(self, key: str, field: bytes) -> Reply:
        fields: dict[bytes, bytes] = self._values.get(key, {})
        return fields.get(field)

    def _hgetall(self, key: str) -> Reply:
        return [part for pair in self._values.get(key, {}).items() for part in pair]

    def _hdel(self, key: str, field: bytes) -> Reply:
        return int(self._values.get(key, {}).pop(field, None) is not None)

    def _hash(self, key: str) -> dict[bytes, bytes]:
        fields: dict[bytes, bytes] = self._values.setdefault(key, {})
        return fields

    # -- sorted sets ----------------------------------------------------------------------------------

    def _zadd(self, key: str, *arguments: bytes) -> Reply:
        *options, score, member = arguments
        members: dict[bytes, float] = self._values.setdefault(key, {})
        is_new = member not in members
        if is_new and b"XX" in options:
            return 0
        members[member] = float(score)
        return int(is_new)

    def _zrem(self, key: str, member: bytes) -> Reply:
        return int(self._values.get(key, {}).pop(member, None) is not None)

    def _zcard(self, key: str) -> Reply:
        return len(self._values.get(key, {}))

    def _zcount(self, key: str, low: bytes, high: bytes) -> Reply:
        return len(self._between(key, low, high))

    def _zscore(self, key: str, member: bytes) -> Reply:
        score = self._values.get(key, {}).get(member)
        return None if score is None else str(score).encode()

    def _zrank(self, key: str, member: bytes) -> Reply:
        order = self._ordered(key)
        return order.index(member) if member in order else None

    def _zrevrank(self, key: str, member: bytes) -> Reply:
        order = self._ordered(key)[::-1]
        return order.index(member) if member in order else None

    def _zrange(self, key: str, start: bytes, stop: bytes, *turned: bytes) -> Reply:
        order = self._ordered(key)[:: -1 if b"REV" in turned else 1]
        last = int(stop)
        found = order[int(start) : None if last == -1 else last + 1]
        if b"WITHSCORES" not in turned:
            return list(found)
        return [part for each in found for part in (each, str(self._values[key][each]).encode())]

    def _zrangebyscore(self, key: str, low: bytes, high: bytes, *limit: bytes) -> Reply:
        found = self._between(key, low, high)
        return list(found[int(limit[1]) :][: int(limit[2])] if limit else found)

    def _between(self, key: str, low: bytes, high: bytes) -> list[bytes]:
        members: dict[bytes, float] = self._values.get(key, {})
        return [each for each in self._ordered(key) if float(low) <= members[each] <= float(high)]

    def _ordered(self, key: str) -> list[bytes]:
        members: dict[bytes, float] = self._values.get(key, {})
        return sorted(members, key=lambda member: (members[member], member))


def _raw(argument: Argument) -> bytes:
    return argument if isinstance(argument, bytes) else str(argument).encode()
