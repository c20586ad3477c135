"""Tenants and keys within one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headway.queueing.errors import InvalidTenantError
from headway.queueing.tenant_book import ApiKey, TenantBook, digest_of
from headway.queueing.tenants import EVERYONE, TenantLimits, check_tenant, read_limits


class MemoryTenants:
    """Keeps every promise of ``TenantStore``; ``clock`` gives seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._book = TenantBook()
        self._digest = ""
        self._named: frozenset[str] = frozenset()

    async def book(self) -> TenantBook:
        """See ``TenantStore.book``."""
        return self._book

    async def set(self, tenant: str, changes: Mapping[str, object]) -> TenantLimits:
        """See ``TenantStore.set``."""
        earlier = self._book.tenants.get(tenant, TenantLimits()).fields()
        merged = {name: value for name, value in {**earlier, **changes}.items() if value is not None}
        limits = read_limits(tenant, merged)
        self._replace({**self._book.tenants, tenant: limits})
        return limits

    async def remove(self, tenant: str) -> bool:
        """See ``TenantStore.remove``."""
        kept = {name: limits for name, limits in self._book.tenants.items() if name != tenant}
        is_gone = len(kept) < len(self._book.tenants)
        self._replace(kept)
        return is_gone

    async def apply(self, tenants: Mapping[str, TenantLimits], digest: str) -> tuple[str, ...]:
        """See ``TenantStore.apply``."""
        if digest == self._digest:
            return ()
        before = self._book.tenants
        dropped = self._named - tenants.keys()
        after = {name: limits for name, limits in before.items() if name not in dropped} | dict(tenants)
        self._digest, self._named = digest, frozenset(tenants)
        self._replace(after)
        return tuple(sorted(name for name in before.keys() | after if before.get(name) != after.get(name)))

    async def add_key(self, tenant: str, name: str, secret: str, *, is_admin: bool = False) -> ApiKey:
        """See ``TenantStore.add_key``."""
        if tenant == EVERYONE:
            raise InvalidTenantError("a key stands for one tenant")
        key = ApiKey(digest_of(secret), check_tenant(tenant), name, int(self._clock() * 1000), is_admin)
        self._book = TenantBook(self._book.tenants, {**self._book.keys, key.digest: key})
        return key

    async def revoke_key(self, digest: str) -> bool:
        """See ``TenantStore.revoke_key``."""
        keys = {name: key for name, key in self._book.keys.items() if name != digest}
        was_there = len(keys) < len(self._book.keys)
        self._book = TenantBook(self._book.tenants, keys)
        return was_there

    def _replace(self, tenants: Mapping[str, TenantLimits]) -> None:
        self._book = TenantBook(dict(tenants), self._book.keys)
