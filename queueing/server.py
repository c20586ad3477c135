"""A connection to Redis or Valkey: raw replies, our own errors, functions loaded when missing.

What redis-py does by default, and what is chosen here instead:

- Every command is retried ten times, after time-outs too: two retries, and only because each write of ours
  is idempotent (by job key, cursor or claim token).
- Blocking reads run into the 5 s socket time-out: they block 2 s at most, on connections of their own.
- Health checks PING inside the handshake: where that is refused (no password given, still loading), each PING
  reconnects, and so on into the recursion limit. None: time-outs and TCP keep-alive find dead links.
- RESP3 brings push messages, and switches off the check for unread data at check-out of a connection: RESP2.
- A cancelled caller can leave a command half done: each command runs in a task of its own, which a cancelled
  caller leaves to finish. So a connection never returns to the pool with a reply still to come.
- Replies are reshaped by command: the table of reply parsers is emptied, and we read what the server sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable
from typing import Any, Final, TypeAlias, TypeVar, cast

import redis.asyncio as redis_asyncio
from redis import exceptions as redis_errors
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff

from headway.queueing.errors import QueueingError, QueueUnavailableError, ServerUnsuitableError
from headway.queueing.functions import library

T = TypeVar("T")
Reply: TypeAlias = "bytes | int | list[Reply] | Exception | None"
Argument: TypeAlias = "str | bytes | int | float"

SOCKET_SECONDS: Final = 5.0
CALL_SECONDS = 8.0
"""A whole call with its retries and reconnections, each of which has the socket's time-out for itself."""

BLOCK_MS: Final = 2000
CONNECTIONS: Final = 16
"""More do not help: a command takes the server microseconds, and many share one pipeline."""

_AWAY = (
    "LOADING",
    "OOM",
    "READONLY",
    "MISCONF",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "NOREPLICAS",
    "TRYAGAIN",
    "BUSY",
)


class Server:
    """One server, used by one event loop."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._commands = _redis(
            redis_asyncio.BlockingConnectionPool,
            url,
            retries=2,
            max_connections=CONNECTIONS,
            timeout=SOCKET_SECONDS,
        )
        self._blocking = _redis(redis_asyncio.ConnectionPool, url, retries=0)
        self._running: set[asyncio.Task[Any]] = set()
        self.is_closed = False

    async def call(self, *command: Argument) -> Reply:
        """One command. Raises QueueUnavailableError, ServerUnsuitableError, or QueueingError."""
        return await self._finish_anyway(self._call(command))

    async def fcall(self, function: str, tag: str, *arguments: Argument) -> Reply:
        """One function of the library, which is loaded if the server has lost it."""
        command = ("FCALL", function, 1, tag, *arguments)
        try:
            return await self.call(*command)
        except FunctionMissingError:
            await self.call("FUNCTION", "LOAD", "REPLACE", library())
            return await self.call(*command)

    async def pipeline(self, commands: Iterable[tuple[Argument, ...]]) -> list[Reply]:
        """Several commands in one round trip, not atomic; a command's own error is its reply."""
        batch = list(commands)
        if not batch:
            return []
        return await self._finish_anyway(self._pipeline(batch))

    async def fcalls(self, function: str, calls: Iterable[tuple[Argument, ...]]) -> list[Reply]:
        """One function several times in one round trip; each call is its tag and arguments."""
        batch: list[tuple[Argument, ...]] = [("FCALL", function, 1, *call) for call in calls]
        replies = await self.pipeline(batch)
        if any(isinstance(reply, FunctionMissingError) for reply in replies):
            await self.call("FUNCTION", "LOAD", "REPLACE", library())
            replies = await self.pipeline(batch)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def block(self, *command: Argument) -> Reply:
        """A command that blocks up to BLOCK_MS, on a connection of its own; a cancel closes that."""
        self._check_open()
        try:
            return cast("Reply", await self._blocking.execute_command(*command))
        except (redis_errors.RedisError, OSError) as error:
            raise translate(error) from error

    async def messages(self, pattern: str) -> AsyncGenerator[tuple[str, str]]:
        """Channel and text of each message published under a pattern, on a connection of its own."""
        subscriber: Any = self._blocking.pubsub()
        try:
            await subscriber.psubscribe(pattern)
            while not self.is_closed:
                message = await subscriber.get_message(ignore_subscribe_messages=True, timeout=1.0)
                if message is not None:
                    channel, text = message["channel"], message["data"]
                    yield channel.decode(errors="replace"), text.decode(errors="replace")
        except (redis_errors.RedisError, OSError) as error:
            raise translate(error) from error
        finally:
            await subscriber.aclose()

    def seal(self) -> None:
        """Refuse calls from now on."""
        self.is_closed = True

    async def close(self) -> None:
        """Let running commands end, then close every connection; later calls are refused."""
        self.seal()
        if self._running:
            await asyncio.wait(self._running, timeout=SOCKET_SECONDS)
        await self._commands.aclose(close_connection_pool=True)
        await self._blocking.aclose(close_connection_pool=True)

    async def _finish_anyway(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_open()
        except QueueUnavailableError:
            work.close()
            raise
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _check_open(self) -> None:
        if self.is_closed:
            raise QueueUnavailableError("this queue was closed")

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have been cancelled, and then nobody else asks for it

    async def _call(self, command: tuple[Argument, ...]) -> Reply:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return cast("Reply", await self._commands.execute_command(*command))
        except (redis_errors.RedisError, OSError) as error:
            raise translate(error) from error

    async def _pipeline(self, commands: list[tuple[Argument, ...]]) -> list[Reply]:
        try:
            async with (
                asyncio.timeout(CALL_SECONDS),
                self._commands.pipeline(transaction=False) as pipeline,
            ):
                for command in commands:
                    await pipeline.execute_command(*command)
                replies = cast("list[Reply]", await pipeline.execute(raise_on_error=False))
        except (redis_errors.RedisError, OSError) as error:
            raise translate(error) from error
        return [translate(reply) if isinstance(reply, Exception) else reply for reply in replies]


class FunctionMissingError(QueueingError):
    """The server does not have our function library: flushed, or never loaded."""


class RefusedError(QueueingError):
    """The server or a function refused the call; the message is the server's."""


def translate(error: Exception) -> QueueingError:
    """A client library's error in our words."""
    if isinstance(error.__cause__, redis_errors.ResponseError | redis_errors.AuthenticationError):
        error = error.__cause__  # refused while connecting, which redis-py reports as a lost connection
    text = str(error) or "no answer in time"
    if isinstance(error, redis_errors.AuthenticationError | redis_errors.AuthorizationError):
        return ServerUnsuitableError(
            f"the server refused the login ({text}): check user and password in the URL"
        )
    if isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError):
        return QueueUnavailableError(f"the queue's server cannot be reached: {text}")
    if isinstance(error, redis_errors.OutOfMemoryError | redis_errors.ReadOnlyError) or text.startswith(
        _AWAY
    ):
        return QueueUnavailableError(f"the queue's server refuses writes now: {text}")
    if "Function not found" in text:
        return FunctionMissingError(text)
    return _refusal(error, text)


def _refusal(error: Exception, text: str) -> QueueingError:
    if isinstance(error, redis_errors.NoPermissionError) or text.startswith("NOPERM"):
        return ServerUnsuitableError(
            f"the server's access rules refuse a command ({text}): see the ACL in docs/wire-protocol.md"
        )
    if text.startswith("MOVED"):
        return ServerUnsuitableError("the server is part of a Cluster, whose redirects are not followed yet")
    return RefusedError(text)


def _redis(pool_class: Any, url: str, *, retries: int, **options: Any) -> Any:
    """A client whose pool closes with it. Untyped, as redis-py's own signatures are."""
    pool = pool_class.from_url(
        url,
        protocol=2,
        socket_timeout=SOCKET_SECONDS,
        socket_connect_timeout=SOCKET_SECONDS,
        health_check_interval=0,
        client_name="headway",
        retry=Retry(ExponentialWithJitterBackoff(base=0.02, cap=0.3), retries),
        **options,
    )
    client = redis_asyncio.Redis.from_pool(pool)
    client.response_callbacks.clear()
    return client
