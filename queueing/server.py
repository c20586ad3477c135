"""The queue's server as the rest of the queue sees it: one process, a Cluster's, or what Sentinels name.

Each command goes to the primary that serves its key. When that one cannot be reached or is no primary any
more, the topology is looked up again, and the command is sent once more if another one serves the key now:
every write of ours may be repeated. A cancelled caller can leave a command half done, and its connection with
a reply still to come: so each call runs in a task of its own, which a cancelled caller leaves to finish.

While a slot moves from one node to another (``ASK``), functions of its lane are refused: they touch keys that
only one of the two has. So nothing is half-written, and the lane goes on when the move is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeVar

from headway.queueing.address import Address, parse_address
from headway.queueing.cluster import ClusterTopology
from headway.queueing.errors import NotNowError, QueueingError, QueueUnavailableError
from headway.queueing.node import CALL_SECONDS, SOCKET_SECONDS, Argument, Node, Reply
from headway.queueing.routing import slot_of
from headway.queueing.sentinel import SentinelTopology
from headway.queueing.server_errors import (
    AskError,
    FunctionMissingError,
    MovedError,
    RefusedError,
)
from headway.queueing.topology import Topology, one_server

__all__ = ["BLOCK_MS", "Argument", "FunctionMissingError", "RefusedError", "Reply", "Server"]

T = TypeVar("T")

BLOCK_MS: Final = 2000
"""A blocking read must end before the socket's time-out does."""
MOST_HOPS: Final = 5
"""Redirects and failovers that one call follows."""
FAILOVER_SECONDS: Final = CALL_SECONDS / 2
"""A call that has taken this long is not sent a second time: its caller has waited enough."""


class Server:
    """What an address names, used by one event loop; connected at first use. Raises InvalidUrlError."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.address = parse_address(url)
        self.topology = _topology(self.address)
        self._running: set[asyncio.Task[Any]] = set()
        self.is_closed = False

    async def call(self, *command: Argument) -> Reply:
        """One command. Raises QueueUnavailableError, ServerUnsuitableError, or QueueingError."""
        return await self._finish_anyway(self._routed(command))

    async def fcall(self, function: str, tag: str, *arguments: Argument) -> Reply:
        """One function of the library, which is loaded if the server has lost it."""
        slot = slot_of(("FCALL", function, 1, tag))
        return await self._finish_anyway(
            self._on_node(slot, lambda node: node.fcall(function, tag, *arguments))
        )

    async def express_call(self, *command: Argument) -> Reply:
        """A command of a caller who calls all the time. Cancelled, it may or may not have happened."""
        self._check_open()
        return await self._on_node(slot_of(command), lambda node: node.express_call(*command))

    async def durable_fcall(self, function: str, tag: str, *arguments: Argument) -> Reply:
        """``fcall`` whose effect is on as many replicas as the URL asks for when it returns.

        Otherwise it raises QueueUnavailableError, although the effect may be there: repeat the call.
        """
        replicas = self.address.replicas
        if not replicas:
            return await self.fcall(function, tag, *arguments)
        slot = slot_of(("FCALL", function, 1, tag))
        return await self._finish_anyway(
            self._on_node(slot, lambda node: node.replicated_fcall(replicas, function, tag, *arguments))
        )

    async def pipeline(self, commands: Iterable[tuple[Argument, ...]]) -> list[Reply]:
        """Several commands in one round trip, not atomic; a command's own error is its reply."""
        batch = list(commands)
        return await self._finish_anyway(self._batch(batch)) if batch else []

    async def fcalls(self, function: str, calls: Iterable[tuple[Argument, ...]]) -> list[Reply]:
        """One function several times in one round trip; each call is its tag and arguments."""
        batch = list(calls)
        if len(batch) == 1:  # a pipeline costs redis-py half as much again
            tag, *arguments = batch[0]
            return [await self.fcall(function, str(tag), *arguments)]
        replies = await self.pipeline(("FCALL", function, 1, *call) for call in batch)
        for at, reply in enumerate(replies):
            if isinstance(reply, FunctionMissingError):
                tag, *arguments = batch[at]
                replies[at] = await self.fcall(function, str(tag), *arguments)
            elif isinstance(reply, Exception):
                raise reply
        return replies

    async def block(self, *command: Argument) -> Reply:
        """A command that blocks up to BLOCK_MS, on a connection of its own; a cancel closes that."""
        self._check_open()
        return await self._on_node(slot_of(command), lambda node: node.block(*command))

    async def messages(self, pattern: str) -> AsyncGenerator[tuple[str, str]]:
        """Channel and text of each message published under a pattern; in a Cluster, on whichever node."""
        self._check_open()
        node = await self.topology.node_for(None)
        try:
            async with aclosing(node.messages(pattern)) as messages:
                async for message in messages:
                    if self.is_closed:
                        return
                    if message is not None:
                        yield message
        except QueueUnavailableError:
            self.topology.doubt(node)
            raise

    async def primaries(self) -> Sequence[Node]:
        """Every server process that takes writes, looked up now."""
        return await self._finish_anyway(self._primaries())

    def seal(self) -> None:
        """Refuse calls from now on."""
        self.is_closed = True

    async def close(self) -> None:
        """Let running commands end, then close every connection; later calls are refused."""
        self.seal()
        if self._running:
            await asyncio.wait(self._running, timeout=SOCKET_SECONDS)
        await self.topology.close()

    # -- a call's task --------------------------------------------------------------------------------

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

    async def _primaries(self) -> Sequence[Node]:
        return await self.topology.primaries()

    # -- where it goes --------------------------------------------------------------------------------

    async def _routed(self, command: tuple[Argument, ...]) -> Reply:
        slot = slot_of(command)
        try:
            return await self._on_node(slot, lambda node: node.call(*command))
        except _MovingError as error:
            if command[0] == "FCALL":
                raise
            # One key of a slot on its way: what the old node does not have, the new one may.
            _, reply = await error.target.pipeline([("ASKING",), command])
            if isinstance(reply, Exception):
                raise reply from None
            return reply

    async def _on_node(self, slot: int | None, ask: Callable[[Node], Awaitable[T]]) -> T:
        """Ask the node that serves a slot, and its successor if that changes meanwhile."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        node = await self.topology.node_for(slot)
        for _ in range(MOST_HOPS):
            try:
                return await ask(node)
            except AskError as error:
                raise _MovingError(error, self.topology.moved(error, node)) from None
            except MovedError as error:
                node = self.topology.moved(error, node)
            except NotNowError:
                raise
            except QueueUnavailableError:
                self.topology.doubt(node)
                if loop.time() - started > FAILOVER_SECONDS:
                    raise
                successor = await self.topology.node_for(slot)
                if successor is node:
                    raise
                node = successor
        raise QueueUnavailableError("the Cluster's nodes do not agree on who serves this slot")

    async def _batch(self, batch: list[tuple[Argument, ...]]) -> list[Reply]:
        """Each command's reply or error. When all go to one node, its failure is raised."""
        by_slot: dict[int | None, list[int]] = {}
        for at, command in enumerate(batch):
            by_slot.setdefault(slot_of(command), []).append(at)
        by_node: dict[Node, tuple[int | None, list[int]]] = {}
        for slot, places in by_slot.items():
            node = await self.topology.node_for(slot)
            by_node.setdefault(node, (slot, []))[1].extend(places)
        parts = [
            self._on_node(slot, _pipeline_of([batch[at] for at in places]))
            for slot, places in by_node.values()
        ]
        outcomes = await asyncio.gather(*parts, return_exceptions=len(parts) > 1)
        replies: list[Reply] = [None] * len(batch)
        for (_, places), outcome in zip(by_node.values(), outcomes, strict=True):
            for number, at in enumerate(places):
                replies[at] = _reply(outcome, number)
        for at, reply in enumerate(replies):
            if isinstance(reply, MovedError):
                replies[at] = await self._again(batch[at])
        return replies

    async def _again(self, command: tuple[Argument, ...]) -> Reply:
        """A redirected command of a batch, by itself."""
        try:
            return await self._routed(command)
        except QueueingError as error:
            return error


class _MovingError(NotNowError):
    """The slot is on its way to ``target``; what touches several of its keys has to wait."""

    def __init__(self, error: AskError, target: Node) -> None:
        super().__init__(f"this lane's slot moves to another node of the Cluster now ({error})")
        self.target = target


def _pipeline_of(commands: list[tuple[Argument, ...]]) -> Callable[[Node], Awaitable[list[Reply]]]:
    return lambda node: node.pipeline(commands)


def _reply(outcome: list[Reply] | BaseException, at: int) -> Reply:
    if isinstance(outcome, list):
        return outcome[at]
    if isinstance(outcome, QueueingError):
        return outcome
    raise outcome


def _topology(address: Address) -> Topology:
    match address.kind:
        case "cluster":
            return ClusterTopology(address)
        case "sentinel":
            return SentinelTopology(address)
        case "one":
            return one_server(address)
