"""One Redis or Valkey process: raw replies, our own errors, functions loaded when missing.

What redis-py does by default, and what is chosen here instead:

- Every command is retried ten times, after time-outs too: two retries, and only because each write of ours
  is idempotent (by job key, cursor or claim token).
- Blocking reads run into the 5 s socket time-out: they block 2 s at most, on connections of their own.
- Health checks PING inside the handshake: where that is refused (no password given, still loading), each PING
  reconnects, and so on into the recursion limit. None: time-outs and TCP keep-alive find dead links.
- RESP3 brings push messages, and switches off the check for unread data at check-out of a connection: RESP2.
- Replies are reshaped by command: the table of reply parsers is emptied, and we read what the server sent.
- Each connection tells the client library's name, which Redis 7.0 does not understand and access rules may
  refuse: it does not.
- Each TLS connection loads the trusted certificates anew, some 20 ms: all of a node share them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, Final, TypeAlias, cast

import redis.asyncio as redis_asyncio
from redis import exceptions as redis_errors
from redis.asyncio.connection import RedisSSLContext
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff

from headway.queueing.address import Place, Tls
from headway.queueing.errors import QueueingError, QueueUnavailableError, ServerUnsuitableError
from headway.queueing.express import Express
from headway.queueing.functions import library
from headway.queueing.sending import sending_well
from headway.queueing.server_errors import FunctionMissingError, translate

Reply: TypeAlias = "bytes | int | list[Reply] | Exception | None"
Argument: TypeAlias = "str | bytes | int | float"

SOCKET_SECONDS: Final = 5.0
CALL_SECONDS = 8.0
"""A whole call with its retries and reconnections, each of which has the socket's time-out for itself."""

REPLICATION_MS: Final = 2000
"""Replicas answer within a round trip, or something is wrong with them."""

CONNECTIONS: Final = 16
"""More do not help: a command takes the server microseconds, and many share one pipeline."""


class Node:
    """One server process, used by one event loop. Nothing is connected before the first call."""

    def __init__(
        self,
        place: Place | str,
        *,
        username: str = "",
        password: str = "",
        db: int = 0,
        tls: Tls | None = None,
    ) -> None:
        """``place``: host and port, or a socket's path. Raises ServerUnsuitableError for bad TLS files."""
        self.place = place
        self._speaks_tls = tls is not None
        options: dict[str, Any] = {"username": username or None, "password": password or None, "db": db}
        if isinstance(place, str):
            options |= {"path": place, "connection_class": redis_asyncio.UnixDomainSocketConnection}
        else:
            options |= {"host": place[0], "port": place[1], "socket_keepalive": True}
            if tls is not None:
                options |= {"connection_class": _TlsConnection, "shared_tls": _tls_context(tls)}
        self._commands = _redis(
            redis_asyncio.BlockingConnectionPool,
            retries=2,
            max_connections=CONNECTIONS,
            timeout=SOCKET_SECONDS,
            **options,
        )
        self._blocking = _redis(redis_asyncio.ConnectionPool, retries=0, **options)
        self._express = Express(self._commands.connection_pool)

    def __str__(self) -> str:
        return self.place if isinstance(self.place, str) else f"{self.place[0]}:{self.place[1]}"

    async def call(self, *command: Argument) -> Reply:
        """One command. Raises QueueUnavailableError, ServerUnsuitableError, or QueueingError."""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return cast("Reply", await self._commands.execute_command(*command))
        except (redis_errors.RedisError, OSError) as error:
            raise self._told(error, command) from error

    async def fcall(self, function: str, tag: str, *arguments: Argument) -> Reply:
        """One function of the library, which is loaded if the server has lost it."""
        command = ("FCALL", function, 1, tag, *arguments)
        try:
            return await self.call(*command)
        except FunctionMissingError:
            await self.load_functions()
            return await self.call(*command)

    async def express_call(self, *command: Argument) -> Reply:
        """``call`` or ``fcall`` of a caller who calls all the time: on its own connection, at half the cost.

        The command must be one that may happen twice. Cancelled, it may or may not have happened.
        """
        if not self._express.is_busy:
            try:
                return cast("Reply", await self._express.call(*command))
            except (redis_errors.RedisError, OSError):
                pass  # the ordinary way tries again, and has the words for what is wrong
        if command[0] == "FCALL":
            return await self.fcall(str(command[1]), str(command[3]), *command[4:])
        return await self.call(*command)

    async def replicated_fcall(self, replicas: int, function: str, tag: str, *arguments: Argument) -> Reply:
        """``fcall``, then wait until so many replicas have what it wrote; else QueueUnavailableError."""
        batch = (("FCALL", function, 1, tag, *arguments), ("WAIT", replicas, REPLICATION_MS))
        reply, reached = await self.pipeline(batch)
        if isinstance(reply, FunctionMissingError):
            await self.load_functions()
            reply, reached = await self.pipeline(batch)
        for each in (reply, reached):
            if isinstance(each, Exception):
                raise each
        assert isinstance(reached, int)
        if reached < replicas:
            raise QueueUnavailableError(f"only {reached} of {replicas} replicas have it: try again")
        return reply

    async def load_functions(self) -> None:
        """Give the server our function library."""
        await self.call("FUNCTION", "LOAD", "REPLACE", library())

    async def pipeline(self, commands: Iterable[tuple[Argument, ...]]) -> list[Reply]:
        """Several commands in one round trip, not atomic; a command's own error is its reply."""
        batch = list(commands)
        try:
            async with (
                asyncio.timeout(CALL_SECONDS),
                self._commands.pipeline(transaction=False) as pipeline,
            ):
                for command in batch:
                    await pipeline.execute_command(*command)
                replies = cast("list[Reply]", await pipeline.execute(raise_on_error=False))
        except (redis_errors.RedisError, OSError) as error:
            raise self._told(error) from error
        return [
            translate(reply, command) if isinstance(reply, Exception) else reply
            for command, reply in zip(batch, replies, strict=True)
        ]

    async def block(self, *command: Argument) -> Reply:
        """A command that blocks, on a connection of its own; a cancel closes that."""
        try:
            return cast("Reply", await self._blocking.execute_command(*command))
        except (redis_errors.RedisError, OSError) as error:
            raise translate(error) from error

    async def messages(self, pattern: str) -> AsyncGenerator[tuple[str, str] | None]:
        """Channel and text of each message published under a pattern; None after each second of silence."""
        subscriber: Any = self._blocking.pubsub()
        try:
            await subscriber.psubscribe(pattern)
            while True:
                message = await subscriber.get_message(ignore_subscribe_messages=True, timeout=1.0)
                if message is None:
                    yield None
                else:
                    channel, text = message["channel"], message["data"]
                    yield channel.decode(errors="replace"), text.decode(errors="replace")
        except (redis_errors.RedisError, OSError) as error:
            raise translate(error) from error
        finally:
            await subscriber.aclose()

    def _told(self, error: Exception, command: Sequence[Argument] = ()) -> QueueingError:
        told = translate(error, command)
        if self._speaks_tls and isinstance(error, TimeoutError) and isinstance(told, QueueUnavailableError):
            # Redis takes the handshake for the start of a command, and waits for the rest.
            return QueueUnavailableError(f"{told}; does this port speak TLS?")
        return told

    async def close(self) -> None:
        """Close every connection."""
        await self._express.close()
        await self._commands.aclose(close_connection_pool=True)
        await self._blocking.aclose(close_connection_pool=True)


class _TlsConnection(redis_asyncio.SSLConnection):
    """A TLS connection whose certificates were loaded before."""

    def __init__(self, *, shared_tls: Any, **options: Any) -> None:
        super().__init__(**options)  # pyright: ignore[reportUnknownMemberType]  # redis-py's options are untyped
        self.ssl_context = shared_tls


def _tls_context(tls: Tls) -> Any:
    context: Any = RedisSSLContext(  # its ``get`` is untyped
        keyfile=tls.keyfile or None,
        certfile=tls.certfile or None,
        cert_reqs="required" if tls.checks_certificate else "none",
        ca_certs=tls.ca_certs or None,
        check_hostname=tls.checks_hostname,
    )
    try:
        context.get()
    except (OSError, ssl.SSLError) as error:
        files = [path for path in (tls.ca_certs, tls.certfile, tls.keyfile) if path]
        raise ServerUnsuitableError(f"the TLS files {', '.join(files)} cannot be used: {error}") from None
    return context


def _redis(pool_class: Any, *, retries: int, **options: Any) -> Any:
    """A client whose pool closes with it. Untyped, as redis-py's own signatures are."""
    pool = pool_class(
        protocol=2,
        socket_timeout=SOCKET_SECONDS,
        socket_connect_timeout=SOCKET_SECONDS,
        health_check_interval=0,
        client_name="headway",
        driver_info=None,
        retry=Retry(ExponentialWithJitterBackoff(base=0.02, cap=0.3), retries),
        **options,
    )
    pool.connection_class = sending_well(pool.connection_class)
    client = redis_asyncio.Redis.from_pool(pool)
    client.response_callbacks.clear()
    return client
