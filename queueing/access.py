"""Who may do what at the server: the smallest access rules of each role, and what a user lacks of them.

Functions run with the rights of who calls them, so a role needs the commands inside its functions too. That
is why a producer could also write into its lane by hand: whoever may post into a lane is trusted with it.

``python -m headway.queueing.access worker`` prints a role's rules for ``ACL SETUSER``; a producer's keys are
those of one lane: ``python -m headway.queueing.access producer smollm2-135m``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headway.queueing.errors import ServerUnsuitableError
from headway.queueing.ids import lane_of
from headway.queueing.keys import FLEET, SYSTEM, LaneKeys
from headway.queueing.routing import slot_of
from headway.queueing.server import Reply, Server

_PRODUCER_COMMANDS: Final = (
    "del get hdel hget hgetall hincrby hkeys hlen hmget hset llen lpos lrem pexpire pexpireat pttl publish "
    "rpush set strlen time type xadd xlen xrange xread xrevrange zadd zcard zcount zrange zrangebyscore zrem "
    "zscore"
)
_SHARED_COMMANDS: Final = f"{_PRODUCER_COMMANDS} lrange scan smembers xdel"
_RECORD_COMMANDS: Final = "hsetnx zrank zrevrank"
"""What records of files and batches take beside the others."""
_GATEWAY_COMMANDS: Final = f"{_SHARED_COMMANDS} {_RECORD_COMMANDS}"
_WORKER_COMMANDS: Final = f"{_SHARED_COMMANDS} lindex lpop sadd xgroup zpopmin zremrangebyscore"

_ALWAYS: Final = "client|setname cluster|slots psubscribe wait"
"""What connecting, finding the nodes of a Cluster, hearing hints and ``?replicas=`` take."""
_SELF_CHECK: Final = "info function|list function|load multi discard"
"""Checks at start, a library that was lost, and asking for rights without using them."""

_PRODUCER_FUNCTIONS: Final = "submit cancel reap"
_SHARED_FUNCTIONS: Final = "restore settle keep reservations reserving quiet weights"
_GATEWAY_FUNCTIONS: Final = (
    f"{_PRODUCER_FUNCTIONS} forget probe reserve unreserve account tenants_apply {_SHARED_FUNCTIONS}"
)
_WORKER_FUNCTIONS: Final = (
    f"claim emit finish renew release reap expire_worker mend report heartbeat {_SHARED_FUNCTIONS}"
)
_ADMIN_FUNCTIONS: Final = "retry redrive purge tenant_set tenant_rm tenants_apply key_put key_rm"

LANE: Final = "{LANE}"
"""In a role's keys and channels, to be replaced by the lane's hash tag."""


@dataclass(frozen=True, slots=True)
class Role:
    """What one kind of process needs, and no more."""

    name: str
    functions: tuple[str, ...]
    commands: tuple[str, ...]
    extra: tuple[str, ...]
    """Commands that name no key of ours."""
    keys: str = "~*"
    channels: str = "&hint:*"

    def rules(self, model: str = "") -> str:
        """What comes after ``ACL SETUSER name on >password``; ``model``: for a producer, whose lane."""
        tag = LaneKeys(lane_of(model)).tag if model else LANE
        calls = [f"+fcall|{name}" for name in self.functions]
        commands = [f"+{name}" for name in (*self.commands, *self.extra)]
        keys, channels = self.keys.replace(LANE, tag), self.channels.replace(LANE, tag)
        return " ".join(["resetkeys", keys, "resetchannels", channels, "-@all", *calls, *commands])


def _functions(*texts: str) -> tuple[str, ...]:
    names = dict.fromkeys(name for text in texts for name in text.split())
    return tuple(f"headway_{name}" for name in names)


PRODUCER: Final = Role(
    "producer",
    _functions(_PRODUCER_FUNCTIONS),
    tuple(_PRODUCER_COMMANDS.split()),
    (*_ALWAYS.split(), "subscribe", "ping"),  # the last ones for clients that are not ours
    keys=f"~*{LANE}*",
)
"""Posts into one lane and reads its streams; without tenants' limits, which it may not read."""
GATEWAY: Final = Role(
    "gateway",
    _functions(_GATEWAY_FUNCTIONS),
    tuple(_GATEWAY_COMMANDS.split()),
    (*_ALWAYS.split(), *_SELF_CHECK.split()),
)
WORKER: Final = Role(
    "worker",
    _functions(_WORKER_FUNCTIONS),
    tuple(_WORKER_COMMANDS.split()),
    (*_ALWAYS.split(), *_SELF_CHECK.split()),
)
ADMIN: Final = Role(
    "admin",
    _functions(_GATEWAY_FUNCTIONS, _WORKER_FUNCTIONS, _ADMIN_FUNCTIONS),
    tuple(f"{_WORKER_COMMANDS} {_RECORD_COMMANDS}".split()),
    (*_ALWAYS.split(), *_SELF_CHECK.split(), "config|get", "cluster|nodes"),
)
"""Whoever runs ``headway doctor``, ``tenants``, ``keys``, ``jobs`` and ``dlq``."""
ROLES: Final = {role.name: role for role in (PRODUCER, GATEWAY, WORKER, ADMIN)}


# -- what a user lacks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Denied:
    """A command that the server's access rules refuse to this user, and the key it was asked with."""

    command: str
    key: str


async def denied_to(server: Server, models: Iterable[str]) -> tuple[Denied, ...] | None:
    """What gateways and workers of these models need and this user may not; None: it may not ask.

    Asked by queueing each command in a transaction that is thrown away: the server checks, and does nothing.
    """
    tags = [FLEET, SYSTEM, *(LaneKeys(lane_of(model)).tag for model in models)]
    denied: list[Denied] = []
    for tag in tags:
        commands = list(_samples(tag))
        node = await server.topology.node_for(slot_of(("GET", tag)))
        first, *replies, _ = await node.pipeline([("MULTI",), *commands, ("DISCARD",)])
        if isinstance(first, ServerUnsuitableError):
            return None
        denied += _refusals(commands, replies)
    return tuple(denied)


def possible_roles(denied: Iterable[Denied]) -> tuple[Role, ...]:
    """The roles of GATEWAY and WORKER for which a user lacks nothing."""
    lacking = {each.command.removeprefix("FCALL ").lower() for each in denied}
    return tuple(role for role in (GATEWAY, WORKER) if lacking.isdisjoint((*role.functions, *role.commands)))


def _refusals(commands: Sequence[tuple[str, ...]], replies: Sequence[Reply]) -> Iterator[Denied]:
    for (name, *arguments), reply in zip(commands, replies, strict=True):
        if not isinstance(reply, ServerUnsuitableError):
            continue
        if name == "FCALL":
            function, _, tag = arguments
            yield Denied(f"FCALL {function}", tag)
        else:
            yield Denied(name, arguments[0] if arguments else "")


_ARGUMENTS: Final = {
    "hdel": "f",
    "hget": "f",
    "hincrby": "f 1",
    "hmget": "f",
    "hset": "f v",
    "hsetnx": "f v",
    "lindex": "0",
    "lpos": "v",
    "lrange": "0 0",
    "lrem": "0 v",
    "pexpire": "1",
    "pexpireat": "1",
    "rpush": "v",
    "sadd": "v",
    "set": "v",
    "xadd": "* f v",
    "xdel": "0-1",
    "xrange": "- +",
    "xrevrange": "+ -",
    "zadd": "0 v",
    "zcount": "0 0",
    "zrange": "0 0",
    "zrangebyscore": "0 0",
    "zrank": "v",
    "zrem": "v",
    "zremrangebyscore": "0 0",
    "zrevrank": "v",
    "zscore": "v",
}
"""What a command needs behind its key to be well-formed."""


def _samples(tag: str) -> Iterator[tuple[str, ...]]:
    """Each command of gateways and workers once, well-formed, on a key of this tag."""
    key = f"doctor:{tag}"
    for name in dict.fromkeys((*GATEWAY.commands, *WORKER.commands)):
        match name:
            case "time":
                yield ("TIME",)
            case "scan":
                yield ("SCAN", "0")
            case "publish":
                yield ("PUBLISH", f"hint:{tag}", "")
            case "xread":
                yield ("XREAD", "STREAMS", key, "0")
            case "xgroup":
                yield ("XGROUP", "DESTROY", key, "g")
            case _:
                yield (name.upper(), key, *_ARGUMENTS.get(name, "").split())
    for function in dict.fromkeys((*GATEWAY.functions, *WORKER.functions)):
        yield ("FCALL", function, "1", tag)


def _main(arguments: Sequence[str]) -> str:
    name, *model = arguments or ("",)
    if name not in ROLES or len(model) > 1:
        return f"usage: python -m headway.queueing.access {'|'.join(ROLES)} [MODEL]"
    return ROLES[name].rules(*model)


if __name__ == "__main__":
    print(_main(sys.argv[1:]))
