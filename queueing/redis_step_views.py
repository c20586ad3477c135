"""Step views on a server: one key says that somebody watches, one short stream per worker holds its views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from headway.queueing.keys import WATCHED, steps_key
from headway.queueing.redis_side import milliseconds
from headway.queueing.server import Server
from headway.queueing.step_views import KEPT_SECONDS, VIEWS_KEPT, StepView


class RedisStepViews:
    """Keeps every promise of ``StepViews``."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def watch(self, seconds: float) -> None:
        """See ``StepViews.watch``."""
        await self._server.call("SET", WATCHED, "1", "PX", milliseconds(seconds))

    async def is_watched(self) -> bool:
        """See ``StepViews.is_watched``."""
        return await self._server.call("GET", WATCHED) is not None

    async def show(self, worker_id: str, text: bytes) -> None:
        """See ``StepViews.show``."""
        key = steps_key(worker_id)
        replies = await self._server.pipeline(
            [
                ("XADD", key, "MAXLEN", VIEWS_KEPT, "*", "view", text),
                ("PEXPIRE", key, milliseconds(KEPT_SECONDS)),
            ]
        )
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply

    async def shown(self, after: Mapping[str, str]) -> tuple[StepView, ...]:
        """See ``StepViews.shown``."""
        commands = [
            ("XRANGE", steps_key(worker_id), f"({place}" if place else "-", "+")
            for worker_id, place in after.items()
        ]
        found: list[StepView] = []
        for worker_id, reply in zip(after, await self._server.pipeline(commands), strict=True):
            if isinstance(reply, Exception):
                raise reply
            for place, fields in cast("list[tuple[bytes, list[bytes]]]", reply or []):
                if len(fields) == 2 and fields[0] == b"view":
                    found.append(StepView(worker_id, place.decode(), fields[1]))
        return tuple(found)
