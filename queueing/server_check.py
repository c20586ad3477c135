"""Whether a server may be trusted with jobs: version, eviction, persistence, our functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from headway.queueing.errors import QueueUnavailableError, ServerUnsuitableError
from headway.queueing.functions import LIBRARY, VERSION, version_of
from headway.queueing.node import Node
from headway.queueing.server import RefusedError, Server

OLDEST: Final = {"Redis": (7, 0), "Valkey": (7, 2)}
"""The first versions with functions; nothing newer is needed."""


async def prepare(server: Server) -> tuple[str, ...]:
    """Check every primary and load the function library there; returns warnings.

    Raises ServerUnsuitableError with what to set, QueueUnavailableError.
    """
    warnings: dict[str, None] = {}
    for node in await server.primaries():
        warnings |= dict.fromkeys(await _prepare(node))
    return tuple(warnings)


async def _prepare(server: Node) -> list[str]:
    warnings: list[str] = []
    try:
        facts = facts_of(await server.call("INFO"))
    except (ServerUnsuitableError, RefusedError) as error:
        if isinstance(error, ServerUnsuitableError) and "access rules" not in str(error):
            raise
        facts = {}
        warnings.append("INFO is not allowed here: version, eviction and persistence were not checked")
    if facts:
        check_version(facts)
        _check_role(facts)
        warnings += _eviction(facts) + _persistence(facts)
    warnings += await _load_functions(server)
    return warnings


def facts_of(reply: Any) -> dict[str, str]:
    """The fields of an ``INFO`` reply."""
    lines = cast("bytes", reply).decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def check_version(facts: Mapping[str, str]) -> None:
    """Raise ServerUnsuitableError for a server without function libraries."""
    # Valkey states a redis_version for old clients, and its own beside it.
    product = "Valkey" if "valkey_version" in facts else "Redis"
    version = facts.get("valkey_version") or facts.get("redis_version", "")
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < OLDEST[product]:
        oldest = ".".join(map(str, OLDEST[product]))
        raise ServerUnsuitableError(f"{product} {version} has no function libraries: use {oldest} or newer")


def _check_role(facts: dict[str, str]) -> None:
    if facts.get("loading") == "1":
        raise QueueUnavailableError("the server is still loading its data set")
    if facts.get("role") == "slave":
        raise ServerUnsuitableError("the server is a read-only replica: connect to its primary")


def _eviction(facts: dict[str, str]) -> list[str]:
    policy = facts.get("maxmemory_policy")
    if policy is None:
        return ["the server does not tell its maxmemory-policy: make sure that it is noeviction"]
    if policy != "noeviction":
        raise ServerUnsuitableError(
            f"maxmemory-policy is {policy}, which drops accepted jobs when memory runs short: "
            "run `CONFIG SET maxmemory-policy noeviction` and set it in the server's configuration"
        )
    return []


def _persistence(facts: dict[str, str]) -> list[str]:
    warnings: list[str] = []
    if facts.get("aof_enabled") != "1":
        warnings.append(
            "appendonly is off: jobs accepted since the last snapshot are lost when the server restarts; "
            "set `appendonly yes`"
        )
    return warnings


async def _load_functions(server: Node) -> list[str]:
    try:
        known = await loaded_version(server)
        if known is not None and known > VERSION:
            return [f"the server has function library version {known}, newer than ours ({VERSION}): kept"]
        await server.load_functions()
    except ServerUnsuitableError as error:
        return [f"the function library could not be loaded, an administrator must: {error}"]
    return []


async def loaded_version(server: Node) -> int | None:
    """The version of the server's copy of the library; None: it has none."""
    reply = await server.call("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY, "WITHCODE")
    for found in cast("list[list[Any]]", reply):
        fields = dict(zip(found[::2], found[1::2], strict=True))
        return version_of(cast("bytes", fields[b"library_code"]).decode(errors="replace"))
    return None
