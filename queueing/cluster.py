"""A Redis or Valkey Cluster: its nodes, who serves which slot, and redirects.

redis-py has a Cluster client of its own. It is not used here, since our calls need what it does not give:
batches split by node with each command's own error, blocking reads and ``ASKING`` on a connection of ours,
functions loaded on the very node that lacks them, and a limit to a call's time (it closes and rebuilds all
connections on redirects; redis-py#4322). What remains is small: a table of slots.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from headway.queueing.address import Address, Place
from headway.queueing.errors import QueueingError, QueueUnavailableError, ServerUnsuitableError
from headway.queueing.node import Node
from headway.queueing.server_errors import AskError, MovedError, RefusedError
from headway.queueing.topology import node_maker

LOOK_SECONDS: Final = 2.0
"""What one node gets to tell the table; then the next one is asked."""


@dataclass(frozen=True, slots=True)
class _Range:
    first: int
    last: int
    primary: Place


class ClusterTopology:
    """The primaries of a Cluster by slot. The table is read at first use, and again after each doubt."""

    def __init__(self, address: Address) -> None:
        self._seeds = address.places
        self._make = node_maker(address)
        self._nodes: dict[Place, Node] = {}
        self._ranges: list[_Range] = []
        self._redirects: dict[int, Node] = {}
        """By slot, what a node said that the table does not know yet."""
        self._doubted: Node | None = None
        self._is_current = False
        self._looking = asyncio.Lock()

    async def node_for(self, slot: int | None) -> Node:
        """See ``Topology.node_for``."""
        if not self._is_current:
            await self._look()
        if slot is None:
            return self._node(self._ranges[0].primary)
        if slot in self._redirects:
            return self._redirects[slot]
        at = bisect_right(self._ranges, slot, key=lambda known: known.first) - 1
        if at < 0 or slot > self._ranges[at].last:
            raise QueueUnavailableError(f"no node of the Cluster serves slot {slot} now")
        return self._node(self._ranges[at].primary)

    async def primaries(self) -> Sequence[Node]:
        """See ``Topology.primaries``."""
        self._is_current = False
        await self._look()
        return [self._node(place) for place in dict.fromkeys(known.primary for known in self._ranges)]

    @property
    def uncovered_slots(self) -> int:
        """How many of the 16,384 slots nobody served when the table was last read."""
        return 16_384 - sum(known.last - known.first + 1 for known in self._ranges)

    def doubt(self, node: Node) -> None:
        """See ``Topology.doubt``."""
        self._doubted = node
        self._is_current = False

    def moved(self, error: MovedError, asked: Node) -> Node:
        """See ``Topology.moved``. An empty host is the one that was asked."""
        node = self._node((error.host or str(asked.place[0]), error.port))
        if not isinstance(error, AskError):  # which is good for this once only
            self._redirects[error.slot] = node
        return node

    async def close(self) -> None:
        """See ``Topology.close``."""
        await asyncio.gather(*(node.close() for node in self._nodes.values()))

    def _node(self, place: Place) -> Node:
        if place not in self._nodes:
            self._nodes[place] = self._make(place)
        return self._nodes[place]

    async def _look(self) -> None:
        """Read the table, once for all who want it now."""
        async with self._looking:
            if self._is_current:
                return
            reply, asked = await self._ask_anybody()
            self._ranges = sorted(_ranges(reply, asked), key=lambda known: known.first)
            self._redirects.clear()
            self._doubted = None
            self._is_current = bool(self._ranges)
            named = {place for known in reply for place in _places(known, asked)}
        if not self._ranges:
            raise QueueUnavailableError("the Cluster serves no slot yet")
        gone = [place for place in self._nodes if place not in named and place not in self._seeds]
        await asyncio.gather(*(self._nodes.pop(place).close() for place in gone))

    async def _ask_anybody(self) -> tuple[list[Any], Node]:
        """The reply of the first node that answers; the doubted one is asked last. Raises QueueingError."""
        candidates = [self._node(place) for place in dict.fromkeys((*self._nodes, *self._seeds))]
        candidates.sort(key=lambda node: node is self._doubted)
        problem: QueueingError = QueueUnavailableError("no node of the Cluster can be reached")
        for node in candidates:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    return cast("list[Any]", await node.call("CLUSTER", "SLOTS")), node
            except TimeoutError:
                continue
            except RefusedError as error:
                if "cluster support disabled" not in str(error):
                    raise
                raise ServerUnsuitableError(f"the server {node} is no Cluster: redis://{node}/0") from None
            except (QueueUnavailableError, ServerUnsuitableError) as error:
                problem = error
        raise problem


def _ranges(reply: list[Any], asked: Node) -> Iterator[_Range]:
    for known in reply:
        yield _Range(known[0], known[1], next(_places(known, asked)))


def _places(known: list[Any], asked: Node) -> Iterator[Place]:
    """Primary first, then its replicas. A node that does not know its own host means the one we asked."""
    for host, port, *_ in known[2:]:
        text = host.decode() if isinstance(host, bytes) else ""
        yield (text if text not in {"", "?"} else str(asked.place[0])), port
