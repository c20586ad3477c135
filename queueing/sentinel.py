"""The primary that a group of Sentinels knows by name, and the next one after a failover.

redis-py's own Sentinel pool keeps asking the old primary while a connection is retried (redis-py#3874), and
takes the first Sentinel's word. Here all are asked at once and the most votes count: one that was cut off
from the others still names the primary of before, which may still take writes that nobody will keep.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final

from headway.queueing.address import Address, Place
from headway.queueing.errors import QueueingError, QueueUnavailableError, ServerUnsuitableError
from headway.queueing.node import Node
from headway.queueing.server_errors import MovedError
from headway.queueing.topology import is_a_cluster, node_maker

LOOK_SECONDS: Final = 1.0
"""What each Sentinel gets to answer."""


class SentinelTopology:
    """One primary at a time, looked up at first use and after each doubt."""

    def __init__(self, address: Address) -> None:
        self._service = address.service
        self._make = node_maker(address)
        make_sentinel = node_maker(address, for_sentinels=True)
        self._sentinels = [make_sentinel(place) for place in address.places]
        self._primary: Node | None = None
        self._is_current = False
        self._looking = asyncio.Lock()

    async def node_for(self, slot: int | None) -> Node:  # noqa: ARG002  # one primary serves every slot
        """See ``Topology.node_for``."""
        if not self._is_current:
            await self._look()
        assert self._primary is not None, "found, or _look has raised"
        return self._primary

    async def primaries(self) -> Sequence[Node]:
        """See ``Topology.primaries``."""
        self._is_current = False
        return (await self.node_for(None),)

    def doubt(self, node: Node) -> None:
        """See ``Topology.doubt``."""
        if node is self._primary:
            self._is_current = False

    def moved(self, error: MovedError, asked: Node) -> Node:
        """See ``Topology.moved``."""
        raise is_a_cluster(asked) from error

    async def close(self) -> None:
        """See ``Topology.close``."""
        nodes = [*self._sentinels, *([] if self._primary is None else [self._primary])]
        await asyncio.gather(*(node.close() for node in nodes))

    async def _look(self) -> None:
        """Ask the Sentinels, once for all who want to know now."""
        async with self._looking:
            if self._is_current:
                return
            place = await self._vote()
            before = self._primary
            if before is None or before.place != place:
                self._primary = self._make(place)
            self._is_current = True
        if before is not None and before is not self._primary:
            await before.close()

    async def _vote(self) -> Place:
        answers = await asyncio.gather(*map(self._ask, self._sentinels))
        votes = Counter(answer for answer in answers if isinstance(answer, tuple))
        if votes:
            return votes.most_common(1)[0][0]
        if any(answer is None for answer in answers):
            raise ServerUnsuitableError(f"no Sentinel knows a primary called {self._service!r}")
        for answer in answers:
            if isinstance(answer, ServerUnsuitableError):
                raise answer
        raise QueueUnavailableError(f"none of the {len(answers)} Sentinels can be reached: {answers[0]}")

    async def _ask(self, sentinel: Node) -> Place | QueueingError | None:
        """The primary's place, None when this Sentinel does not know the name, or why it does not answer."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                reply = await sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        except TimeoutError:
            return QueueUnavailableError(f"{sentinel} does not answer")
        except QueueingError as error:
            return error
        if not isinstance(reply, list):
            return None
        host, port = reply
        assert isinstance(host, bytes)
        assert isinstance(port, bytes)
        return host.decode(), int(port)
