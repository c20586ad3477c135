"""What is said when a job's quotas are asked: the question, the standing, the answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class QuotaLimit(StrEnum):
    """A limit that can refuse a job; the value is its field of TenantLimits."""

    RPM = "rpm"
    TPM = "tpm"
    CONCURRENCY = "concurrency"
    QUEUED_JOBS = "queued_jobs"
    QUEUED_TOKENS = "queued_tokens"
    DAILY_TOKENS = "daily_tokens"

    @property
    def is_rate(self) -> bool:
        """Whether only time helps; with the others the end or the start of a job does."""
        return self in {QuotaLimit.RPM, QuotaLimit.TPM}


@dataclass(frozen=True, slots=True)
class RateStanding:
    """One rate as of now."""

    limit: int
    """Per minute."""
    remaining: int
    reset_seconds: float
    """Until nothing counts as used any more."""

    def shown(self) -> dict[str, Any]:
        """What is left, as values of JSON."""
        return {"remaining": self.remaining, "reset_seconds": self.reset_seconds}


@dataclass(frozen=True, slots=True)
class QuotaStanding:
    """Both rates of a tenant; None where there is no limit."""

    requests: RateStanding | None = None
    tokens: RateStanding | None = None


@dataclass(frozen=True, slots=True)
class Reservation:
    """A job's place in its tenant's quotas; ``nonce`` tells it from others of the same job id."""

    tenant: str
    job_id: str
    nonce: str
    is_new: bool
    """False: this job had reserved before, and nothing was counted twice."""
    standing: QuotaStanding


@dataclass(frozen=True, slots=True)
class Refusal:
    """Which limit refuses, and the seconds after which it may not."""

    limit: QuotaLimit
    retry_after_seconds: float
    standing: QuotaStanding
    tokens_left_today: int | None = None
    """Of the daily budget, neither spent nor held by jobs in flight; None without one."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a reserved job has used in the end."""

    job_id: str
    nonce: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Alive:
    """A reserved job that has not ended."""

    job_id: str
    nonce: str
    is_running: bool


@dataclass(frozen=True, slots=True)
class Held:
    """A reservation as its keeper sees it."""

    job_id: str
    nonce: str


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """A tenant's account now. ``in_flight`` jobs include ``waiting_jobs``."""

    in_flight: int
    waiting_jobs: int
    waiting_tokens: int
    held_tokens: int
    """Reserved by jobs in flight."""
    spent_tokens: int
    """Used by jobs that have ended since midnight UTC."""
    standing: QuotaStanding

    def shown(self) -> dict[str, Any]:
        """The account as values of JSON; null for a rate that has no limit."""
        requests, tokens = self.standing.requests, self.standing.tokens
        return {
            "in_flight": self.in_flight,
            "waiting_jobs": self.waiting_jobs,
            "waiting_tokens": self.waiting_tokens,
            "held_tokens": self.held_tokens,
            "spent_tokens_today": self.spent_tokens,
            "requests": None if requests is None else requests.shown(),
            "tokens": None if tokens is None else tokens.shown(),
        }
