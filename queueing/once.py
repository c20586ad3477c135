"""Idempotency keys of files and batches: which record each has made. Those of jobs lie beside the jobs."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import orjson

from headway.queueing.errors import IdempotencyConflictError
from headway.queueing.keys import BATCH

if TYPE_CHECKING:
    from headway.queueing.batch_store import Commands

KEPT_SECONDS: Final = 86_400
"""As long as a job's key, by default."""


class Once:
    """The first request under a key decides what the key stands for, for a day."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def made(self, tenant: str, key: str, request_digest: str) -> str | None:
        """The id of what this key has made; raises IdempotencyConflictError if it was asked for otherwise."""
        text = await self._commands.call("GET", _name(tenant, key))
        if not isinstance(text, bytes):
            return None
        kept: Any = orjson.loads(text)
        if kept["digest"] != request_digest:
            raise IdempotencyConflictError(
                f"the idempotency key was used with a different request, which made {kept['id']}: "
                "send a new key with a new request"
            )
        return str(kept["id"])

    async def make(self, tenant: str, key: str, request_digest: str, made_id: str) -> str:
        """Let the key stand for this id, unless it has one; the id that it stands for. Raises as ``made``."""
        value = orjson.dumps({"id": made_id, "digest": request_digest})
        await self._commands.call("SET", _name(tenant, key), value, "NX", "PX", KEPT_SECONDS * 1000)
        return await self.made(tenant, key, request_digest) or made_id

    async def replace(self, tenant: str, key: str, request_digest: str, made_id: str) -> None:
        """Let the key stand for another id: what it stood for was deleted."""
        value = orjson.dumps({"id": made_id, "digest": request_digest})
        await self._commands.call("SET", _name(tenant, key), value, "PX", KEPT_SECONDS * 1000)


def _name(tenant: str, key: str) -> str:
    return f"once:{BATCH}:{tenant}:{sha256(key.encode(errors='surrogatepass')).hexdigest()}"
