"""Quotas on a server: each call is one function on the tenant's own slot (lua/quota.lua and before)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, cast

from headway.queueing.keys import KEEPER, RESERVING, SYSTEM, tenant_tag
from headway.queueing.quota_values import (
    Alive,
    Held,
    QuotaLimit,
    QuotaStanding,
    RateStanding,
    Refusal,
    Reservation,
    Spent,
    TenantUsage,
)
from headway.queueing.server import Argument, Reply, Server
from headway.queueing.server_errors import WrongTypeError
from headway.queueing.settings import QueueSettings
from headway.queueing.tenants import TenantLimits, is_tenant

_TOUCH_SECONDS: Final = 300.0
"""How often a process says again that a tenant reserves; half of what lua/tenants.lua waits for."""


class RedisQuotas:
    """Keeps every promise of ``QuotaStore``."""

    def __init__(self, server: Server, settings: QueueSettings) -> None:
        self._server = server
        self._lease_ms = round(settings.reservation_seconds * 1000)
        self._touched: dict[str, float] = {}

    async def reserve(
        self, tenant: str, job_id: str, nonce: str, *, tokens: int, prompt_tokens: int, limits: TenantLimits
    ) -> Reservation | Refusal:
        """See ``QuotaStore.reserve``."""
        await self._touch(tenant)
        outcome, kept_nonce, wait_ms, *left = await self._ask(
            "headway_reserve",
            tenant,
            job_id,
            nonce,
            self._lease_ms,
            tokens,
            prompt_tokens,
            *(_argument(getattr(limits, name)) for name in TenantLimits.QUOTAS),
        )
        standing = _standing(limits, left)
        if outcome in {"ok", "again"}:
            return Reservation(tenant, job_id, kept_nonce, outcome == "ok", standing)
        today = int(left[4]) if left[4] else None
        return Refusal(QuotaLimit(outcome), int(wait_ms) / 1000, standing, today)

    async def unreserve(self, reservation: Reservation) -> None:
        """See ``QuotaStore.unreserve``."""
        tag = tenant_tag(reservation.tenant)
        await self._server.fcall("headway_unreserve", tag, reservation.job_id, reservation.nonce)

    async def settle(self, tenant: str, spent: Sequence[Spent]) -> int:
        """See ``QuotaStore.settle``."""
        arguments: list[Argument] = []
        for each in spent:
            arguments += (each.job_id, each.nonce, each.prompt_tokens, each.completion_tokens)
        return cast("int", await self._server.fcall("headway_settle", tenant_tag(tenant), *arguments))

    async def keep(self, tenant: str, alive: Sequence[Alive]) -> int:
        """See ``QuotaStore.keep``."""
        arguments: list[Argument] = [self._lease_ms]
        for each in alive:
            arguments += (each.job_id, each.nonce, "r" if each.is_running else "q")
        return cast("int", await self._server.fcall("headway_keep", tenant_tag(tenant), *arguments))

    async def ending(
        self, tenant: str, within_seconds: float, limit: int, skip: int = 0
    ) -> tuple[int, tuple[Held, ...]]:
        """See ``QuotaStore.ending``."""
        within_ms = round(within_seconds * 1000)
        count, *pairs = await self._ask("headway_reservations", tenant, within_ms, limit, skip)
        return int(count), _held(pairs)

    async def lapsed(self, tenant: str, limit: int, skip: int = 0) -> tuple[Held, ...]:
        """See ``QuotaStore.lapsed``."""
        _, *pairs = await self._ask("headway_reservations", tenant, "gone", limit, skip)
        return _held(pairs)

    async def waiting(self, tenant: str, limit: int, skip: int = 0) -> tuple[Held, ...]:
        """See ``QuotaStore.waiting``."""
        _, *pairs = await self._ask("headway_reservations", tenant, "", limit, skip)
        return _held(pairs)

    async def usage(self, tenant: str, limits: TenantLimits) -> TenantUsage:
        """See ``QuotaStore.usage``."""
        arguments = (_argument(limits.rpm), _argument(limits.tpm))
        in_flight, jobs, tokens, held, spent, *left = await self._ask("headway_account", tenant, *arguments)
        return TenantUsage(
            in_flight=int(in_flight),
            waiting_jobs=int(jobs),
            waiting_tokens=int(tokens),
            held_tokens=int(held),
            spent_tokens=int(spent),
            standing=_standing(limits, left),
        )

    async def reserving(self) -> tuple[str, ...]:
        """See ``QuotaStore.reserving``."""
        try:
            reply = await self._server.call("ZRANGE", RESERVING, 0, -1)
        except WrongTypeError:  # whoever reserves next replaces it
            self._touched.clear()
            return ()
        names = (name.decode(errors="replace") for name in cast("list[bytes]", reply))
        return tuple(filter(is_tenant, names))  # others are somebody else's

    async def quiet(self, tenants: Sequence[str]) -> None:
        """See ``QuotaStore.quiet``."""
        if tenants:
            await self._server.fcall("headway_quiet", SYSTEM, *tenants)

    async def elect(self, seconds: float) -> bool:
        """See ``QuotaStore.elect``."""
        milliseconds = round(seconds * 1000)
        if await self._server.call("SET", KEEPER, "1", "NX", "PX", milliseconds) is not None:
            return True
        # Whatever is there, a stranger's too, holds up the keepers no longer than a keeper may.
        await self._server.call("PEXPIRE", KEEPER, milliseconds, "LT")
        return False

    async def _touch(self, tenant: str) -> None:
        """Tell the keepers that this tenant reserves; before the first time, and now and then."""
        now = asyncio.get_running_loop().time()
        if now - self._touched.get(tenant, now - 2 * _TOUCH_SECONDS) > _TOUCH_SECONDS:
            await self._server.fcall("headway_reserving", SYSTEM, tenant)
            if len(self._touched) > 10_000:  # names that come and go, in open mode
                self._touched.clear()
            self._touched[tenant] = now

    async def _ask(self, function: str, tenant: str, *arguments: Argument) -> list[str]:
        reply: Reply = await self._server.fcall(function, tenant_tag(tenant), *arguments)
        return [part.decode() for part in cast("list[bytes]", reply)]


def _argument(limit: int | None) -> Argument:
    return "" if limit is None else limit


def _held(pairs: list[str]) -> tuple[Held, ...]:
    return tuple(Held(job_id, nonce) for job_id, nonce in zip(pairs[::2], pairs[1::2], strict=True))


def _standing(limits: TenantLimits, left: list[str]) -> QuotaStanding:
    """From four numbers: requests left, ms until all are, tokens left, ms until all are."""

    def of(limit: int | None, remaining: str, reset_ms: str) -> RateStanding | None:
        return None if limit is None else RateStanding(limit, int(remaining), int(reset_ms) / 1000)

    return QuotaStanding(of(limits.rpm, left[0], left[1]), of(limits.tpm, left[2], left[3]))
