"""What can be seen of a lane beside its jobs: who waits, what ended, what the quotas are yet to be told."""

from __future__ import annotations

from dataclasses import dataclass

from headway.queueing.events import EndReason
from headway.queueing.messages import Priority


@dataclass(frozen=True, slots=True)
class TenantBacklog:
    """A tenant's waiting jobs in one band. Jobs that came back are not in it: they go first in any case."""

    tenant: str
    priority: Priority
    jobs: int
    tokens: int
    """Estimated at acceptance: prompt and longest answer."""
    next_created_ms: int
    """When the job was accepted that is its next in this band: with deadlines, not always the oldest."""
    virtual_time: float
    """Service in estimated tokens by weight; the tenant with the smallest goes next."""
    weight: float


@dataclass(frozen=True, slots=True)
class EndedJob:
    """One of the newest jobs that ended. Times are the server's clock in milliseconds since the epoch."""

    job_id: str
    tenant: str
    priority: Priority
    reason: EndReason
    completion_tokens: int
    created_ms: int
    ended_ms: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of a job that was submitted under a reservation: what the quotas owe back or are owed.

    It stays until ``settled`` names its ``entry_id``; a job has exactly one. Without a ``job_id`` it is
    somebody else's entry, which only has to go.
    """

    entry_id: str
    job_id: str
    tenant: str
    reserved: str
    """What ``submit`` was given as ``reserved``."""
    prompt_tokens: int
    """0 when the job ended without a worker."""
    completion_tokens: int
    reason: EndReason
