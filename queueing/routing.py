"""The Cluster slot of a command, from the key that it names first."""

from __future__ import annotations

from typing import Final

from redis.crc import key_slot

from headway.queueing.node import Argument

_WITHOUT_KEY: Final = frozenset(
    ("ACL", "CLIENT", "CLUSTER", "CONFIG", "FUNCTION", "INFO", "LATENCY", "PING", "PUBLISH", "ROLE", "TIME")
)


def slot_of(command: tuple[Argument, ...]) -> int | None:
    """The slot of the first key of a command; None for one without keys. All its keys must share the slot."""
    name = str(command[0]).upper()
    if name in _WITHOUT_KEY or len(command) == 1:
        return None
    if name in {"FCALL", "FCALL_RO"}:
        return _slot(command[3])
    if name in {"XREAD", "XREADGROUP"}:
        return _slot(command[command.index("STREAMS") + 1])
    return _slot(command[1])


def _slot(key: Argument) -> int:
    return key_slot(key if isinstance(key, bytes) else str(key).encode())
