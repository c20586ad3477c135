"""Servers in groups for tests: a Cluster, and a primary with a replica under the eyes of three Sentinels."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Self

from redis.crc import key_slot
from tests.conftest import RedisServer, server_binary

SLOTS = 16_384
START_SECONDS = 60.0
"""Generous: two cores may be busy with other tests."""


def eventually(what: str, is_so: Callable[[], bool]) -> None:
    """Return once it is so."""
    deadline = time.monotonic() + START_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"not within {START_SECONDS} s: {what}"
        time.sleep(0.02)


def free_port() -> int:
    """A TCP port of this machine that nobody uses at this moment.

    Below the range from which the kernel gives ports to connections and to whoever binds port 0: one of those
    would now and then be taken before the server that it was chosen for listens.
    """
    while True:
        port = 15_000 + secrets.randbelow(15_000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


class TcpServer(RedisServer):
    """A server that also listens on a port of 127.0.0.1."""

    def __init__(self, kind: str, *options: str, port_option: str = "--port") -> None:
        self.port = free_port()
        own = (port_option, str(self.port), "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0")
        super().__init__(kind, *own, *options)

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def said(self, text: str, *words: str) -> bool:
        """Whether a reply contains a text."""
        with contextlib.suppress(OSError):
            return text.encode() in self.command(*words)
        return False


def until_replicated(primary: TcpServer, tag: str, *replicas: TcpServer) -> None:
    """Return once writes arrive one by one: what is written before that comes with the first copy."""

    def arrives(key: str) -> None:
        primary.command("SET", key, "here")
        eventually("the replicas follow", lambda: all(each.said(key, "KEYS", key) for each in replicas))
        primary.command("DEL", key)

    arrives(f"{{{tag}}}copied")
    arrives(f"{{{tag}}}streamed")


class ClusterServers:
    """Three primaries that share the slots, each with so many replicas."""

    def __init__(self, kind: str, *options: str, replicas: int = 0, port_option: str = "--port") -> None:
        self.kind = kind
        self._port_option = port_option
        self._replicas = replicas
        self.nodes = [self._node(*options) for _ in range(3 * (1 + replicas))]

    def _node(self, *options: str) -> TcpServer:
        bus = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
        # Without replicas nobody takes over, and a busy machine's pause should not look like a dead node.
        patience = "1000" if self._replicas else "5000"
        every = (*bus, "--cluster-node-timeout", patience, *options)
        return TcpServer(self.kind, *every, port_option=self._port_option)

    @property
    def url(self) -> str:
        """Two of the nodes: the client finds the others."""
        return "redis+cluster://" + ",".join(node.place for node in self.nodes[:2])

    @property
    def primaries(self) -> list[TcpServer]:
        """The nodes that were made primaries."""
        return self.nodes[:3]

    @property
    def replicas(self) -> list[TcpServer]:
        """The first three follow the three primaries, and so on."""
        return self.nodes[3:]

    def start(self) -> Self:
        for node in self.nodes:
            node.start()
        first, *others = self.nodes
        bus_port = first.options[first.options.index("--cluster-port") + 1]
        for number, node in enumerate(self.nodes):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        for node in others:
            node.command("CLUSTER", "MEET", "127.0.0.1", str(first.port), bus_port)
        for number, node in enumerate(self.primaries):
            start, end = number * SLOTS // 3, (number + 1) * SLOTS // 3 - 1
            assert node.command("CLUSTER", "ADDSLOTSRANGE", str(start), str(end)) == b"+OK\r\n"
        known = f"cluster_known_nodes:{len(self.nodes)}\r\n"
        eventually("all know all", lambda: all(node.said(known, "CLUSTER", "INFO") for node in self.nodes))
        for number, node in enumerate(self.replicas):
            assert node.command("CLUSTER", "REPLICATE", self.id_of(self.primaries[number % 3])) == b"+OK\r\n"
        up = "cluster_state:ok"
        eventually("the Cluster is up", lambda: all(node.said(up, "CLUSTER", "INFO") for node in self.nodes))
        for at, node in enumerate(self.primaries):
            until_replicated(node, _key_between(at * SLOTS // 3), *self.replicas[at::3])
        return self

    def id_of(self, node: TcpServer) -> str:
        return node.command("CLUSTER", "MYID").decode().split("\r\n")[1]

    def empty(self) -> None:
        for node in self.primaries:
            node.command("FLUSHALL")

    def serving(self, slot: int) -> TcpServer:
        """The primary that was given a slot at the start."""
        return self.primaries[next(n for n in range(3) if slot < (n + 1) * SLOTS // 3)]

    def begin_move(self, slot: int, source: TcpServer, target: TcpServer) -> None:
        """Step 1 of what an operator's tool does."""
        target.command("CLUSTER", "SETSLOT", str(slot), "IMPORTING", self.id_of(source))
        source.command("CLUSTER", "SETSLOT", str(slot), "MIGRATING", self.id_of(target))

    def move_keys(self, slot: int, source: TcpServer, target: TcpServer, most: int = 10_000) -> None:
        """Step 2: up to so many of a slot's keys, in the server's order."""
        reply = source.command("CLUSTER", "GETKEYSINSLOT", str(slot), str(most))
        for key in reply.decode().split("\r\n")[2::2]:
            moved = source.command("MIGRATE", "127.0.0.1", str(target.port), key, "0", "5000")
            assert moved == b"+OK\r\n", moved

    def end_move(self, slot: int, target: TcpServer) -> None:
        """Step 3, for a slot whose keys have all been moved."""
        for node in (target, *(each for each in self.nodes if each is not target)):
            told = node.command("CLUSTER", "SETSLOT", str(slot), "NODE", self.id_of(target))
            assert told == b"+OK\r\n", told

    def remove(self) -> None:
        for node in self.nodes:
            node.remove()


def _key_between(first_slot: int) -> str:
    """A key whose slot is in the third of the slots that begins there."""
    return next(str(n) for n in range(1000) if 0 <= key_slot(str(n).encode()) - first_slot < SLOTS // 3)


class SentinelServers:
    """A primary, its replica, and three Sentinels that replace it within about a second."""

    SERVICE = "queue"

    def __init__(self, kind: str, *options: str, port_option: str = "--port") -> None:
        every = ("--appendonly", "yes", *options)
        self.primary = TcpServer(kind, *every, port_option=port_option)
        source = self.primary.place.split(":")
        self.replica = TcpServer(kind, *every, "--replicaof", *source, port_option=port_option)
        self.sentinels = [_Sentinel(kind, *options, port_option=port_option) for _ in range(3)]

    @property
    def url(self) -> str:
        places = ",".join(sentinel.place for sentinel in self.sentinels)
        return f"redis+sentinel://{places}/{self.SERVICE}"

    def start(self) -> Self:
        self.primary.start()
        self.replica.start()
        until_replicated(self.primary, "first", self.replica)
        for sentinel in self.sentinels:
            others = [other for other in self.sentinels if other is not sentinel]
            sentinel.introduce(self.primary.port, self.replica.port, others)
            sentinel.start()
        # Only a Sentinel that has heard from the replica can make it the next primary.
        heard = "master-link-status\r\n$2\r\nok"
        eventually(
            "the Sentinels have asked the replica",
            lambda: all(each.said(heard, "SENTINEL", "REPLICAS", self.SERVICE) for each in self.sentinels),
        )
        return self

    def remove(self) -> None:
        for server in (*self.sentinels, self.primary, self.replica):
            server.remove()


class _Sentinel(TcpServer):
    """A Sentinel: the same program, told by a file that it rewrites itself."""

    def __init__(self, kind: str, *options: str, port_option: str) -> None:
        super().__init__(kind, *options, port_option=port_option)
        self._settings = [*zip(options[::2], options[1::2], strict=True), (port_option, str(self.port))]
        self.id = secrets.token_hex(20)

    def introduce(self, primary: int, replica: int, others: list[_Sentinel]) -> None:
        """Tell it by its file what it would hear from the others within seconds."""
        service = SentinelServers.SERVICE
        lines = [
            "port 0",
            *(f"{name.removeprefix('--')} {value}" for name, value in self._settings),
            "bind 127.0.0.1",
            f"unixsocket {self.socket}",
            f"dir {self.folder}",
            f"sentinel myid {self.id}",
            f"sentinel monitor {service} 127.0.0.1 {primary} 2",
            f"sentinel down-after-milliseconds {service} 600",
            f"sentinel failover-timeout {service} 3000",
            f"sentinel known-replica {service} 127.0.0.1 {replica}",
            *(f"sentinel known-sentinel {service} 127.0.0.1 {other.port} {other.id}" for other in others),
        ]
        (self.folder / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        command = [server_binary(self.kind), str(self.folder / "sentinel.conf"), "--sentinel"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        eventually("the Sentinel answers", self._answers)
