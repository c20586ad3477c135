"""Which server process serves a key, and how that is found out again when it may have changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headway.queueing.address import Address, Place
from headway.queueing.errors import QueueingError, ServerUnsuitableError
from headway.queueing.node import Node
from headway.queueing.server_errors import MovedError

MakeNode = Callable[[Place], Node]


class Topology(Protocol):
    """The servers of one address. Used by one event loop."""

    async def node_for(self, slot: int | None) -> Node:
        """The primary that serves a slot; None: any. Raises QueueUnavailableError."""
        ...

    async def primaries(self) -> Sequence[Node]:
        """Every primary, looked up now."""
        ...

    def doubt(self, node: Node) -> None:
        """This one failed: look again before the next answer."""
        ...

    def moved(self, error: MovedError, asked: Node) -> Node:
        """Where a redirect points to. Raises QueueingError if there is no following it."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class OneServer:
    """The topology of one server: nothing to find, nowhere else to go."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def node_for(self, slot: int | None) -> Node:  # noqa: ARG002  # one node serves every slot
        """See ``Topology.node_for``."""
        return self._node

    async def primaries(self) -> Sequence[Node]:
        """See ``Topology.primaries``."""
        return (self._node,)

    def doubt(self, node: Node) -> None:
        """See ``Topology.doubt``."""

    def moved(self, error: MovedError, asked: Node) -> Node:
        """See ``Topology.moved``."""
        raise is_a_cluster(asked) from error

    async def close(self) -> None:
        """See ``Topology.close``."""
        await self._node.close()


def is_a_cluster(asked: Node) -> QueueingError:
    """What to say when one server turns out to be part of a Cluster."""
    return ServerUnsuitableError(
        f"the server {asked} is part of a Cluster: name it redis+cluster://{asked} (over TLS rediss+cluster://)"
    )


def node_maker(address: Address, *, for_sentinels: bool = False) -> MakeNode:
    """How to reach any server of an address: with its credentials and TLS."""

    def make(place: Place) -> Node:
        if for_sentinels:
            return Node(
                place,
                username=address.sentinel_username,
                password=address.sentinel_password,
                tls=address.tls,
            )
        return Node(
            place, username=address.username, password=address.password, db=address.db, tls=address.tls
        )

    return make


def one_server(address: Address) -> OneServer:
    """The topology of ``redis://``, ``rediss://`` and ``unix://``."""
    if address.path:
        node = Node(address.path, username=address.username, password=address.password, db=address.db)
        return OneServer(node)
    return OneServer(node_maker(address)(address.places[0]))
