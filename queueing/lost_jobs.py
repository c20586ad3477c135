"""Jobs that no index of their lane names any more, because somebody deleted it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from headway.queueing.errors import ServerUnsuitableError
from headway.queueing.keys import LaneKeys
from headway.queueing.routing import slot_of
from headway.queueing.server import Server
from headway.queueing.settings import QueueSettings

_KEYS_LOOKED_AT: Final = 1000
"""By one SCAN: a fraction of a millisecond of the server's time."""


class LostJobs:
    """Finds a lane's records by SCAN and puts their jobs back where their state says that they are.

    It costs one pass over the server's keys, so only who got a ticket does it: the books say when to.
    """

    def __init__(self, server: Server, settings: QueueSettings) -> None:
        self._server = server
        self._lease_ms = max(1, round(settings.lease_seconds * 1000))
        self._patience_ms = round(settings.patience_seconds * 1000)

    async def restore(self, keys: LaneKeys, ticket: int) -> int:
        """How many jobs were in no index. Raises QueueUnavailableError: somebody searches again later."""
        node = await self._server.topology.node_for(slot_of(("GET", keys.tag)))
        prefix = f"j:{keys.tag}:"
        restored, cursor = 0, b"0"
        while True:
            try:
                reply = await node.call("SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", _KEYS_LOOKED_AT)
            except (
                ServerUnsuitableError
            ):  # a user with the rules of an older version; `headway doctor` says so
                return restored
            cursor, found = cast("tuple[bytes, list[bytes]]", reply)
            if found:
                restored += await self._call(keys, ticket, [each[len(prefix) :] for each in found])
            if cursor == b"0":
                await self._call(keys, ticket, ())
                return restored

    async def _call(self, keys: LaneKeys, ticket: int, jobs: Sequence[bytes]) -> int:
        reply = await self._server.fcall(
            "headway_restore", keys.tag, ticket, self._lease_ms, self._patience_ms, *jobs
        )
        return cast("int", reply)
