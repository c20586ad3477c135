"""A connection kept for one caller who calls all the time: what a worker's emits travel on.

A call through redis-py's pool takes a connection, looks whether something unread is left on it, sets four
timers, and gives it back; with the task that shields it from its caller's cancel that is twice the work of
the call itself, for each step of a worker, on the thread that shares the interpreter with the engine.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final

from redis import exceptions as redis_errors

EXPRESS_SECONDS: Final = 2.0
"""A call that takes longer is given up: the ordinary way has more patience, and retries."""


class Express:
    """One connection of a redis-py pool, one call at a time; connected at the first one."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._connection: Any = None
        self.is_busy = False
        """A call is under way: others have to go the ordinary way."""

    async def call(self, *command: Any) -> Any:
        """One command, sent once. Raises redis-py's errors or OSError: then it may have happened or not."""
        self.is_busy = True
        try:
            async with asyncio.timeout(EXPRESS_SECONDS):
                connection = self._connection or await self._connect()
                await connection.send_packed_command(connection.pack_command(*command), check_health=False)
                return await connection.read_response(timeout=math.inf, disconnect_on_error=False)
        except redis_errors.ResponseError:
            raise  # the reply was read to its end: the connection is good
        except BaseException:
            # A cancel, too, leaves a reply to come, which the next call would take for its own.
            await self.close()
            raise
        finally:
            self.is_busy = False

    async def close(self) -> None:
        """Drop the connection; the next call makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def _connect(self) -> Any:
        connection = self._pool.make_connection()
        try:
            await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._connection = connection
        return connection
