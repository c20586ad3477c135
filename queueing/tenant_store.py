"""Where tenants, keys and quotas are kept: beside the jobs, in Redis or in this process's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from headway.queueing.quota_values import Alive, Held, Refusal, Reservation, Spent, TenantUsage
from headway.queueing.tenant_book import ApiKey, TenantBook
from headway.queueing.tenants import TenantLimits


class TenantStore(Protocol):
    """Limits and keys. What one process changes, all others go by within about half a second."""

    async def book(self) -> TenantBook:
        """Everything, at most half a second old; while the server is away, as it was last.

        Raises QueueUnavailableError when it was never read.
        """
        ...

    async def set(self, tenant: str, changes: Mapping[str, object]) -> TenantLimits:
        """Change some of a tenant's limits (None takes one away); returns all. Raises InvalidTenantError."""
        ...

    async def remove(self, tenant: str) -> bool:
        """Forget a tenant's limits; False: it had none."""
        ...

    async def apply(self, tenants: Mapping[str, TenantLimits], digest: str) -> tuple[str, ...]:
        """Take over a file's tenants, and drop those that only an earlier file named; returns who changed.

        ``digest`` is the file's: the same one again changes nothing.
        """
        ...

    async def add_key(self, tenant: str, name: str, secret: str, *, is_admin: bool = False) -> ApiKey:
        """Let a secret stand for a tenant; only its digest is kept. Raises InvalidTenantError."""
        ...

    async def revoke_key(self, digest: str) -> bool:
        """Refuse a key from now on; False: there was none."""
        ...


class QuotaStore(Protocol):
    """Accounts and reservations by tenant. All clocks are the server's; each call is atomic."""

    async def reserve(
        self, tenant: str, job_id: str, nonce: str, *, tokens: int, prompt_tokens: int, limits: TenantLimits
    ) -> Reservation | Refusal:
        """Count a job against its tenant's limits, or say which one refuses it.

        A reservation lasts half a minute unless it is kept; then it lapses and is given back.
        """
        ...

    async def unreserve(self, reservation: Reservation) -> None:
        """Give back all of a reservation whose job was not accepted."""
        ...

    async def settle(self, tenant: str, spent: Sequence[Spent]) -> int:
        """Replace reservations by what was used, each once; returns how many it was now.

        A job that ended without a worker's word (0 prompt tokens), but with tokens published, is also charged
        for the prompt as reserved.
        """
        ...

    async def keep(self, tenant: str, alive: Sequence[Alive]) -> int:
        """Keep reservations whose jobs live, and note which run; lapsed ones are made again."""
        ...

    async def ending(
        self, tenant: str, within_seconds: float, limit: int, skip: int = 0
    ) -> tuple[int, tuple[Held, ...]]:
        """How many are in flight, and whose lease ends soon or has ended, the first of them in front."""
        ...

    async def lapsed(self, tenant: str, limit: int, skip: int = 0) -> tuple[Held, ...]:
        """Reservations given back because nobody kept them, within the last day, the latest in front."""
        ...

    async def waiting(self, tenant: str, limit: int, skip: int = 0) -> tuple[Held, ...]:
        """Reservations whose jobs are not known to run, the oldest first."""
        ...

    async def usage(self, tenant: str, limits: TenantLimits) -> TenantUsage:
        """A tenant's account."""
        ...

    async def reserving(self) -> tuple[str, ...]:
        """Tenants that may have reservations."""
        ...

    async def quiet(self, tenants: Sequence[str]) -> None:
        """Forget that these may have some, unless one was made lately."""
        ...

    async def elect(self, seconds: float) -> bool:
        """Whether this process is to look after the reservations now; nobody else is for so long."""
        ...
