"""What `headway doctor` looks at: each primary's own words about itself, and the fleet as the queue has it.

Nothing is changed by looking.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from headway.queueing.access import Denied, denied_to
from headway.queueing.address import Address
from headway.queueing.cluster import ClusterTopology
from headway.queueing.errors import QueueingError, ServerUnsuitableError
from headway.queueing.node import Node
from headway.queueing.protocol import LaneDepth, Queue
from headway.queueing.server import RefusedError, Server
from headway.queueing.server_check import facts_of, loaded_version
from headway.queueing.worker_card import WorkerCard

PINGS: Final = 20


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system of a server's data, where it is this machine's."""

    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """One primary. Empty ``info`` or ``config``: this user may not ask."""

    place: str
    info: Mapping[str, str]
    config: Mapping[str, str]
    library: int | None
    """Version of the function library; None: there is none."""
    offset_seconds: float
    """The server's clock minus this host's."""
    round_trip_seconds: float
    """Median of a few."""
    disk: Disk | None
    moving_slots: int = 0
    """Of a Cluster's node: slots on their way to another one, whose lanes take no call meanwhile."""

    def number(self, name: str, default: int = 0) -> int:
        """A number that INFO tells."""
        text = self.info.get(name, "")
        return int(text) if text.lstrip("-").isdigit() else default


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the queue tells of those who use it."""

    workers: tuple[WorkerCard, ...]
    lanes: Mapping[str, LaneDepth]
    """By model: every one that was ever served."""
    api_keys: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the checks look at."""

    address: Address
    servers: tuple[ServerFacts, ...]
    uncovered_slots: int | None
    """Of a Cluster; None: it is none."""
    denied: tuple[Denied, ...] | None
    """What this user may not do; None: it may not even ask."""
    fleet: Fleet | str
    """Or why the queue does not tell."""


async def gather(queue: Queue, server: Server) -> Facts:
    """Look at everything, changing nothing. Raises QueueUnavailableError, ServerUnsuitableError."""
    primaries = await server.primaries()
    servers = tuple([await _look_at(node, server.address) for node in primaries])
    topology = server.topology
    fleet: Fleet | str
    denied: tuple[Denied, ...] | None = None
    try:
        fleet = await _fleet(queue)
        denied = await denied_to(server, fleet.lanes)
    except QueueingError as error:
        fleet = str(error)
    return Facts(
        address=server.address,
        servers=servers,
        uncovered_slots=topology.uncovered_slots if isinstance(topology, ClusterTopology) else None,
        denied=denied,
        fleet=fleet,
    )


async def _fleet(queue: Queue) -> Fleet:
    workers = await queue.workers()
    models = sorted({*await queue.models(), *(card.model for card in workers)})
    return Fleet(
        workers=workers,
        lanes={model: await queue.depth(model) for model in models},
        api_keys=len((await queue.tenant_store.book()).keys),
    )


async def _look_at(node: Node, address: Address) -> ServerFacts:
    info = facts_of(await _asked(node, "INFO") or b"")
    config = _config(await _asked(node, "CONFIG", "GET", "*"))
    offset, trips = await _clock(node)
    return ServerFacts(
        place=str(node),
        info=info,
        config=config,
        library=await _library(node),
        offset_seconds=offset,
        round_trip_seconds=statistics.median(trips),
        disk=_disk(address, node, info, config),
        moving_slots=await _moving_slots(node) if address.kind == "cluster" else 0,
    )


async def _moving_slots(node: Node) -> int:
    """How many this node gives away now: in its own line of the table, ``[93-<-id]`` is one that comes."""
    reply = cast("bytes", await _asked(node, "CLUSTER", "NODES") or b"")
    return sum(line.count(b"->-") for line in reply.splitlines() if b"myself" in line)


async def _asked(node: Node, *command: str) -> Any:
    """The reply, or None where this user or this provider does not allow the question."""
    try:
        return await node.call(*command)
    except (RefusedError, ServerUnsuitableError):
        return None


def _config(reply: Any) -> Mapping[str, str]:
    texts = [part.decode(errors="replace") for part in cast("Sequence[bytes]", reply or ())]
    return dict(zip(texts[::2], texts[1::2], strict=True))


async def _library(node: Node) -> int | None:
    try:
        return await loaded_version(node)
    except QueueingError:
        return None


async def _clock(node: Node) -> tuple[float, list[float]]:
    """The server's clock minus ours, from the quickest of a few round trips, and how long those took."""
    best, offset, trips = float("inf"), 0.0, list[float]()
    for _ in range(PINGS):
        began = time.perf_counter()
        seconds, micros = cast("list[bytes]", await node.call("TIME"))
        trip = time.perf_counter() - began
        trips.append(trip)
        if trip < best:
            best, offset = trip, int(seconds) + int(micros) / 1e6 - (time.time() - trip / 2)
    return offset, trips


def _disk(address: Address, node: Node, info: Mapping[str, str], config: Mapping[str, str]) -> Disk | None:
    """Where the server writes, if that is here: its process runs here under the id it tells."""
    is_here = bool(address.path) or str(node).partition(":")[0] in {"127.0.0.1", "localhost", "::1"}
    folder = config.get("dir")
    if not is_here or folder is None or not os.path.exists(f"/proc/{info.get('process_id', '-')}"):
        return None
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return Disk(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)
