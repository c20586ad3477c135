"""Quotas within one process: what lua/reservations.lua and quota.lua do on a server, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from headway.queueing.leaky_bucket import LeakyBucket
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
from headway.queueing.settings import DEFAULTS, QueueSettings
from headway.queueing.tenants import TenantLimits

MICROSECONDS: Final = 1_000_000
DAY: Final = 86_400 * MICROSECONDS
SOON: Final = 1 * MICROSECONDS
"""What a wait for the next of the tenant's jobs to start or end is said to take: nobody knows."""
LONGEST_LEASE: Final = 3600 * MICROSECONDS
GONE_KEPT: Final = DAY
QUIET: Final = 600 * MICROSECONDS


@dataclass(slots=True)
class _Held:
    """A reservation. Times in microseconds; ``is_gone``: it lapsed, and its job may be there all the same.

    ``filled``: the tokens in the bucket, which takes no more than it holds: the rest of a larger job is
    settled at its end.
    """

    job_id: str
    nonce: str
    tokens: int
    prompt_tokens: int
    filled: int
    since: int
    lease_end: int = 0
    gone_at: int = 0
    is_waiting: bool = True
    is_gone: bool = False


@dataclass(slots=True)
class _Account:
    requests: LeakyBucket = field(default_factory=LeakyBucket)
    tokens: LeakyBucket = field(default_factory=LeakyBucket)
    day: int = 0
    spent: int = 0
    held: dict[str, _Held] = field(default_factory=dict[str, _Held])

    @property
    def in_flight(self) -> list[_Held]:
        return [each for each in self.held.values() if not each.is_gone]

    @property
    def waiting(self) -> list[_Held]:
        return sorted((each for each in self.in_flight if each.is_waiting), key=lambda each: each.since)

    def rest_of(self, daily_tokens: int) -> int:
        """What is neither spent nor held of the day's budget."""
        return daily_tokens - self.spent - sum(each.tokens for each in self.in_flight)

    def find(self, job_id: str, nonce: str) -> _Held | None:
        held = self.held.get(job_id)
        return held if held is not None and held.nonce == nonce else None

    def give_back(self, held: _Held, now: int) -> None:
        self.requests.fill(-1, now)
        self.tokens.fill(-held.filled, now)

    def keep(self, held: _Held, lease: int, now: int, *, is_waiting: bool) -> None:
        if held.is_gone:
            held.is_gone = False
            self.requests.fill(1, now)
            self.tokens.fill(held.filled, now)
        held.is_waiting = is_waiting
        whole = now - now % 1000  # leases are whole milliseconds, as a server counts them
        held.lease_end = whole + min(max(lease, whole - held.since), LONGEST_LEASE)

    def sweep(self, now: int) -> None:
        """Give back what lapsed; when something did, forget what lapsed long ago."""
        ended = [held for held in self.in_flight if held.lease_end // 1000 <= now // 1000]
        for held in ended:
            held.gone_at, held.is_gone = now, True
            self.give_back(held, now)
        if ended:
            forgotten = now // 1000 - GONE_KEPT // 1000
            self.held = {
                job_id: held
                for job_id, held in self.held.items()
                if not held.is_gone or held.gone_at // 1000 > forgotten
            }


class MemoryQuotas:
    """Keeps every promise of ``QuotaStore``; ``clock`` gives seconds since the epoch and may be virtual."""

    def __init__(self, clock: Callable[[], float], settings: QueueSettings = DEFAULTS) -> None:
        self._clock = clock
        self._lease = round(settings.reservation_seconds * MICROSECONDS)
        self._accounts: dict[str, _Account] = {}
        self._touched: dict[str, int] = {}
        self._elected_until = 0

    def _now(self) -> int:
        return round(self._clock() * MICROSECONDS)

    def _open(self, tenant: str, now: int) -> _Account:
        account = self._accounts.setdefault(tenant, _Account())
        if account.day != now // DAY:
            account.day, account.spent = now // DAY, 0
        return account

    async def reserve(
        self, tenant: str, job_id: str, nonce: str, *, tokens: int, prompt_tokens: int, limits: TenantLimits
    ) -> Reservation | Refusal:
        """See ``QuotaStore.reserve``."""
        now = self._now()
        account = self._open(tenant, now)
        account.sweep(now)
        account.requests.set_rate(limits.rpm, now)
        account.tokens.set_rate(limits.tpm, now)
        self._touched[tenant] = now
        held = account.held.get(job_id)
        if held is not None:
            account.keep(held, self._lease, now, is_waiting=held.is_waiting or held.is_gone)
            return Reservation(tenant, job_id, held.nonce, False, _standing(account, limits, now))
        waits = _waits(account, tokens, limits, now)
        if waits:
            limit = max(waits, key=lambda each: waits[each])  # the first of those that wait longest
            today = None if limits.daily_tokens is None else max(0, account.rest_of(limits.daily_tokens))
            return Refusal(limit, waits[limit] / MICROSECONDS, _standing(account, limits, now), today)
        filled = tokens if limits.tpm is None else min(tokens, limits.tpm)
        held = _Held(job_id, nonce, tokens, prompt_tokens, filled, since=now - now % 1000)
        account.held[job_id] = held
        account.requests.fill(1, now)
        account.tokens.fill(filled, now)
        account.keep(held, self._lease, now, is_waiting=True)
        return Reservation(tenant, job_id, nonce, True, _standing(account, limits, now))

    async def unreserve(self, reservation: Reservation) -> None:
        """See ``QuotaStore.unreserve``."""
        now = self._now()
        account = self._open(reservation.tenant, now)
        held = account.find(reservation.job_id, reservation.nonce)
        if held is not None:
            if not held.is_gone:
                account.give_back(held, now)
            del account.held[held.job_id]

    async def settle(self, tenant: str, spent: Sequence[Spent]) -> int:
        """See ``QuotaStore.settle``."""
        now = self._now()
        account = self._open(tenant, now)
        return sum(_settle(account, each, now) for each in spent)

    async def keep(self, tenant: str, alive: Sequence[Alive]) -> int:
        """See ``QuotaStore.keep``."""
        now = self._now()
        account = self._open(tenant, now)
        kept = 0
        for each in alive:
            held = account.find(each.job_id, each.nonce)
            if held is not None:
                account.keep(held, self._lease, now, is_waiting=not each.is_running)
                kept += 1
        return kept

    async def ending(
        self, tenant: str, within_seconds: float, limit: int, skip: int = 0
    ) -> tuple[int, tuple[Held, ...]]:
        """See ``QuotaStore.ending``."""
        now = self._now()
        account = self._open(tenant, now)
        until = now - now % 1000 + round(within_seconds * MICROSECONDS)
        due = sorted(
            (each for each in account.in_flight if each.lease_end <= until), key=lambda each: each.lease_end
        )
        return len(account.in_flight), _named(due[skip : skip + limit])

    async def lapsed(self, tenant: str, limit: int, skip: int = 0) -> tuple[Held, ...]:
        """See ``QuotaStore.lapsed``."""
        held = self._open(tenant, self._now()).held.values()
        gone = sorted((each for each in held if each.is_gone), key=lambda each: each.gone_at, reverse=True)
        return _named(gone[skip : skip + limit])

    async def waiting(self, tenant: str, limit: int, skip: int = 0) -> tuple[Held, ...]:
        """See ``QuotaStore.waiting``."""
        account = self._open(tenant, self._now())
        return _named(account.waiting[skip : skip + limit])

    async def usage(self, tenant: str, limits: TenantLimits) -> TenantUsage:
        """See ``QuotaStore.usage``."""
        now = self._now()
        account = self._open(tenant, now)
        account.sweep(now)
        account.requests.set_rate(limits.rpm, now)
        account.tokens.set_rate(limits.tpm, now)
        return TenantUsage(
            in_flight=len(account.in_flight),
            waiting_jobs=len(account.waiting),
            waiting_tokens=sum(each.tokens for each in account.waiting),
            held_tokens=sum(each.tokens for each in account.in_flight),
            spent_tokens=account.spent,
            standing=_standing(account, limits, now),
        )

    async def reserving(self) -> tuple[str, ...]:
        """See ``QuotaStore.reserving``."""
        return tuple(self._touched)

    async def quiet(self, tenants: Sequence[str]) -> None:
        """See ``QuotaStore.quiet``."""
        before = self._now() - QUIET
        for tenant in tenants:
            if self._touched.get(tenant, before) < before:
                del self._touched[tenant]

    async def elect(self, seconds: float) -> bool:
        """See ``QuotaStore.elect``."""
        now = self._now()
        if now < self._elected_until:
            return False
        self._elected_until = now + round(seconds * MICROSECONDS)
        return True


def _named(held: Sequence[_Held]) -> tuple[Held, ...]:
    return tuple(Held(each.job_id, each.nonce) for each in held)


def _waits(account: _Account, tokens: int, limits: TenantLimits, now: int) -> dict[QuotaLimit, int]:
    """The limits that refuse, each with the microseconds until it may not."""
    waiting = account.waiting
    waiting_tokens = sum(each.tokens for each in waiting)
    waits: dict[QuotaLimit, int] = {}
    if limits.concurrency is not None and len(account.in_flight) >= limits.concurrency:
        waits[QuotaLimit.CONCURRENCY] = SOON
    if limits.queued_jobs is not None and len(waiting) >= limits.queued_jobs:
        waits[QuotaLimit.QUEUED_JOBS] = SOON
    # What is larger than a limit of tokens in the queue or per minute passes when nothing else counts against
    # it: it could never pass otherwise. A day's budget is never overdrawn by what a job said it may take.
    if limits.queued_tokens is not None and 0 < waiting_tokens > limits.queued_tokens - tokens:
        waits[QuotaLimit.QUEUED_TOKENS] = SOON
    if limits.daily_tokens is not None:
        if account.spent + tokens > limits.daily_tokens:
            waits[QuotaLimit.DAILY_TOKENS] = (account.day + 1) * DAY - now
        elif tokens > account.rest_of(limits.daily_tokens):
            waits[QuotaLimit.DAILY_TOKENS] = SOON
    if limits.rpm is not None:
        waits[QuotaLimit.RPM] = account.requests.wait_microseconds(1, now)
    if limits.tpm is not None:
        waits[QuotaLimit.TPM] = account.tokens.wait_microseconds(tokens, now)
    return {limit: wait for limit, wait in waits.items() if wait > 0}


def _settle(account: _Account, spent: Spent, now: int) -> bool:
    held = account.find(spent.job_id, spent.nonce)
    if held is None:
        return False
    used = spent.prompt_tokens + spent.completion_tokens
    if spent.prompt_tokens == 0 and used > 0:
        used += held.prompt_tokens
    if held.is_gone:
        account.requests.fill(1, now)
        account.tokens.fill(used, now)
    else:
        account.tokens.fill(used - held.filled, now)
    account.spent += used
    del account.held[held.job_id]
    return True


def _standing(account: _Account, limits: TenantLimits, now: int) -> QuotaStanding:
    def of(bucket: LeakyBucket, limit: int | None) -> RateStanding | None:
        if limit is None:
            return None
        return RateStanding(limit, bucket.left(), bucket.reset_microseconds(now) / MICROSECONDS)

    return QuotaStanding(of(account.requests, limits.rpm), of(account.tokens, limits.tpm))
