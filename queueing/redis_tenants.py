"""Tenants and keys on a server, read again when a version says that they changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import orjson

from headway.queueing.errors import InvalidTenantError, QueueingError, ServerUnsuitableError
from headway.queueing.keys import API_KEYS, CONFIG, SYSTEM, TENANTS
from headway.queueing.server import Argument, Reply, Server
from headway.queueing.tenant_book import ApiKey, TenantBook, digest_of
from headway.queueing.tenants import EVERYONE, TenantLimits, check_tenant, read_limits

REFRESH_SECONDS: Final = 0.5
"""A change is noticed within this; the look is one HMGET."""


class RedisTenants:
    """Keeps every promise of ``TenantStore``. ``clock`` (seconds since the epoch) only dates keys."""

    def __init__(self, server: Server, clock: Callable[[], float]) -> None:
        self._server = server
        self._clock = clock
        self._book: TenantBook | None = None
        self._versions: list[bytes | None] = []
        self._read_at = 0.0
        self._reading: asyncio.Task[TenantBook] | None = None

    async def book(self) -> TenantBook:
        """See ``TenantStore.book``."""
        now = asyncio.get_running_loop().time()
        if self._book is not None and now - self._read_at < REFRESH_SECONDS:
            return self._book
        if self._reading is None:  # one look for all who ask meanwhile, whoever of them is cancelled
            self._reading = asyncio.create_task(self._read(), name="headway-tenants")
            self._reading.add_done_callback(self._done)
        return await asyncio.shield(self._reading)

    def _done(self, reading: asyncio.Task[TenantBook]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # everyone who asked may be gone

    async def _read(self) -> TenantBook:
        try:
            versions = cast("list[bytes | None]", await self._server.call("HMGET", CONFIG, "tenants", "keys"))
            if self._book is None or versions != self._versions:
                # Read after the version: what changes in between is read twice, not missed.
                tenants = await self._server.call("HGETALL", TENANTS)
                keys = await self._server.call("HGETALL", API_KEYS)
                self._book = TenantBook(_tenants(tenants), _keys(keys))
                self._versions = versions
        except ServerUnsuitableError:
            # A producer whose access rules name its lanes only: it could submit without us as well.
            self._book = self._book or TenantBook(is_readable=False)
        except QueueingError:
            if self._book is None:
                raise
        self._read_at = asyncio.get_running_loop().time()
        assert self._book is not None
        return self._book

    async def set(self, tenant: str, changes: Mapping[str, object]) -> TenantLimits:
        """See ``TenantStore.set``."""
        given = {name: value for name, value in changes.items() if value is not None}
        fields = read_limits(tenant, given).model_dump(mode="json", include=set(given))
        taken = dict.fromkeys(name for name, value in changes.items() if value is None)
        if unknown := taken.keys() - TenantLimits.model_fields:
            read_limits(tenant, dict.fromkeys(unknown))
        text = orjson.dumps({**fields, **taken})
        whole = await self._change("headway_tenant_set", tenant, text)
        return read_limits(tenant, orjson.loads(cast("bytes", whole)))

    async def remove(self, tenant: str) -> bool:
        """See ``TenantStore.remove``."""
        return await self._change("headway_tenant_rm", tenant) == 1

    async def apply(self, tenants: Mapping[str, TenantLimits], digest: str) -> tuple[str, ...]:
        """See ``TenantStore.apply``."""
        arguments: list[Argument] = [digest]
        for name, limits in tenants.items():
            arguments += (name, orjson.dumps(limits.fields()))
        changed = await self._change("headway_tenants_apply", *arguments)
        return tuple(sorted(name.decode() for name in cast("list[bytes]", changed)))

    async def add_key(self, tenant: str, name: str, secret: str) -> ApiKey:
        """See ``TenantStore.add_key``."""
        if tenant == EVERYONE:
            raise InvalidTenantError("a key stands for one tenant")
        key = ApiKey(digest_of(secret), check_tenant(tenant), name, int(self._clock() * 1000))
        text = orjson.dumps({"tenant": key.tenant, "name": key.name, "created_ms": key.created_ms})
        await self._change("headway_key_put", key.digest, text)
        return key

    async def revoke_key(self, digest: str) -> bool:
        """See ``TenantStore.revoke_key``."""
        return await self._change("headway_key_rm", digest) == 1

    async def _change(self, function: str, *arguments: Argument) -> Reply:
        try:
            return await self._server.fcall(function, SYSTEM, *arguments)
        finally:
            self._read_at = 0.0  # who changes something sees it at once


def _tenants(reply: Any) -> dict[str, TenantLimits]:
    """What is kept; fields of a newer version are not ours to apply, and what is no entry is left out."""
    found: dict[str, TenantLimits] = {}
    for name, text in _pairs(reply):
        try:
            kept = cast("dict[str, object]", orjson.loads(text))
            known = {field: value for field, value in kept.items() if field in TenantLimits.model_fields}
            found[name] = read_limits(name, known)
        except (InvalidTenantError, orjson.JSONDecodeError, AttributeError):
            continue
    return found


def _keys(reply: Any) -> dict[str, ApiKey]:
    found: dict[str, ApiKey] = {}
    for digest, text in _pairs(reply):
        try:
            kept = orjson.loads(text)
            found[digest] = ApiKey(digest, kept["tenant"], kept["name"], kept["created_ms"])
        except (orjson.JSONDecodeError, KeyError, TypeError):
            continue
    return found


def _pairs(flat: list[bytes]) -> list[tuple[str, bytes]]:
    return [(name.decode(errors="replace"), text) for name, text in zip(flat[::2], flat[1::2], strict=True)]
