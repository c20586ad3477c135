"""Tenants and keys on a server, read again when a version says that they changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import orjson

from headway.queueing.errors import InvalidTenantError, QueueingError, ServerUnsuitableError
from headway.queueing.keys import API_KEYS, CONFIG, SYSTEM, TENANTS
from headway.queueing.server import Argument, RefusedError, Reply, Server
from headway.queueing.server_errors import WrongTypeError
from headway.queueing.tenant_book import ApiKey, TenantBook, digest_of
from headway.queueing.tenants import EVERYONE, TenantLimits, check_tenant, read_limits

_LATEST_MS: Final = 253_402_300_800_000
"""The year 10000, as lua/tenants.lua has it."""
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
            versions = cast("list[bytes | None]", await self._call("HMGET", CONFIG, "tenants", "keys"))
            if self._book is None or versions != self._versions:
                # Read after the version: what changes in between is read twice, not missed.
                tenants, broken_tenants = _tenants(await self._call("HGETALL", TENANTS))
                keys, broken_keys = _keys(await self._call("HGETALL", API_KEYS))
                self._book = TenantBook(tenants, keys, broken_tenants, broken_keys)
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
        kept = cast("bytes | None", await self._call("HGET", TENANTS, tenant))
        invalid = dict.fromkeys(_invalid_fields(tenant, kept or b"{}"))  # they would make the whole invalid
        text = orjson.dumps({**invalid, **fields, **taken})
        whole = await self._change("headway_tenant_set", tenant, text)
        return _limits(tenant, cast("bytes", whole))

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

    async def add_key(self, tenant: str, name: str, secret: str, *, is_admin: bool = False) -> ApiKey:
        """See ``TenantStore.add_key``."""
        if tenant == EVERYONE:
            raise InvalidTenantError("a key stands for one tenant")
        key = ApiKey(digest_of(secret), check_tenant(tenant), name, int(self._clock() * 1000), is_admin)
        kept = {"tenant": key.tenant, "name": key.name, "created_ms": key.created_ms}
        text = orjson.dumps(kept | ({"admin": True} if is_admin else {}))
        await self._change("headway_key_put", key.digest, text)
        return key

    async def revoke_key(self, digest: str) -> bool:
        """See ``TenantStore.revoke_key``."""
        return await self._change("headway_key_rm", digest) == 1

    async def _change(self, function: str, *arguments: Argument) -> Reply:
        try:
            return await self._server.fcall(function, SYSTEM, *arguments)
        except RefusedError as error:
            raise QueueingError(str(error).removeprefix("HEADWAYINVALID ")) from None
        finally:
            self._read_at = 0.0  # who changes something sees it at once

    async def _call(self, command: str, key: str, *arguments: Argument) -> Reply:
        try:
            return await self._server.call(command, key, *arguments)
        except WrongTypeError:
            raise QueueingError(
                f"{key} is no hash: somebody else wrote it. Remove it with `DEL {key}`, and set what it "
                "had again"
            ) from None


def _object(text: bytes) -> dict[str, object]:
    """The fields of a kept entry; raises InvalidTenantError."""
    try:
        kept = orjson.loads(text)
    except orjson.JSONDecodeError:
        kept = None
    if not isinstance(kept, dict):
        raise InvalidTenantError("the entry is no JSON object")
    return cast("dict[str, object]", kept)


def _limits(tenant: str, text: bytes) -> TenantLimits:
    """A kept entry; fields of a newer version are not ours to apply. Raises InvalidTenantError."""
    fields = _object(text)
    return read_limits(tenant, {name: fields[name] for name in fields if name in TenantLimits.model_fields})


def _invalid_fields(tenant: str, text: bytes) -> list[str]:
    """The fields of a kept entry that make it invalid; of what is no entry, none: it is replaced."""
    try:
        fields = _object(text)
    except InvalidTenantError:
        return []
    found: list[str] = []
    for name in TenantLimits.model_fields.keys() & fields:
        try:
            read_limits(tenant, {name: fields[name]})
        except InvalidTenantError:
            found.append(name)
    return found


def _tenants(reply: Any) -> tuple[dict[str, TenantLimits], dict[str, str]]:
    """What is kept, and what is wrong with the entries that cannot be read."""
    found: dict[str, TenantLimits] = {}
    broken: dict[str, str] = {}
    for name, text in _pairs(reply):
        try:
            found[name] = _limits(name, text)
        except InvalidTenantError as error:
            broken[name] = str(error)
    return found, broken


def _keys(reply: Any) -> tuple[dict[str, ApiKey], dict[str, str]]:
    found: dict[str, ApiKey] = {}
    broken: dict[str, str] = {}
    for digest, text in _pairs(reply):
        try:
            found[digest] = _key(digest, text)
        except InvalidTenantError as error:
            broken[digest] = str(error)
    return found, broken


def _key(digest: str, text: bytes) -> ApiKey:
    """A kept key; raises InvalidTenantError for what is none."""
    kept = _object(text)
    tenant, name, created_ms = (kept.get(field) for field in ("tenant", "name", "created_ms"))
    if not isinstance(tenant, str) or tenant == EVERYONE:
        raise InvalidTenantError("it names no tenant")
    if not isinstance(name, str):
        raise InvalidTenantError("its name is no text")
    if type(created_ms) is not int or not 0 <= created_ms < _LATEST_MS:
        raise InvalidTenantError("created_ms is no date")
    return ApiKey(digest, check_tenant(tenant), name, created_ms, is_admin=kept.get("admin") is True)


def _pairs(flat: list[bytes]) -> list[tuple[str, bytes]]:
    return [(name.decode(errors="replace"), text) for name, text in zip(flat[::2], flat[1::2], strict=True)]
