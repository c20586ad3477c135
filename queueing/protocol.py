"""The queue as its users see it; RedisQueue and MemoryQueue both keep every promise written here.

Producers call submit, read, result, cancel, status. Consumers (workers) call claim, emit, finish, renew,
release, wait. Anyone may call reap. One contract suite (tests/contract) runs against every implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from typing import Protocol

from headway.queueing.backlog import EndedJob, Settlement, TenantBacklog
from headway.queueing.batch_store import BatchStore
from headway.queueing.claims import Claim, Emit, Fenced, Finish
from headway.queueing.day_usage import DayUsage
from headway.queueing.events import Cursor, JobResult, JobStatus, StreamEvent
from headway.queueing.messages import Job, Priority
from headway.queueing.quota_values import QuotaStanding
from headway.queueing.step_views import StepViews
from headway.queueing.tenant_store import QuotaStore, TenantStore
from headway.queueing.webhook_store import WebhookStore
from headway.queueing.worker_card import WorkerCard


@dataclass(frozen=True, slots=True)
class Submitted:
    """The job's id, and whether this call created it (False: the idempotency key named an earlier one)."""

    job_id: str
    created: bool
    standing: QuotaStanding | None = field(default=None, compare=False)
    """The tenant's rates after this job, where it has limits; only ``Admission.submit`` asks for them."""


class Cancelled(StrEnum):
    """What a cancel met."""

    QUEUED = "queued"
    """Ended at once."""
    RUNNING = "running"
    """Its worker was told; the terminal event follows within a step or two."""
    FINISHED = "finished"
    """Too late: it had ended."""


@dataclass(frozen=True, slots=True)
class Wakeup:
    """What ended a worker's wait: there may be work, and these of its jobs were cancelled meanwhile."""

    may_have_work: bool
    cancelled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reaped:
    """Jobs whose lease had ended: put back in the queue, or given up after too many attempts."""

    requeued: tuple[str, ...]
    dead_lettered: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LaneDepth:
    """How much waits and runs in one lane (model and shard)."""

    queued: dict[Priority, int]
    running: int
    dead_letters: int
    queued_tokens: int = 0
    """Estimated at acceptance: prompt and longest answer of every waiting job."""
    tokens_per_second: float = 0.0
    """What the lane's workers together have generated at their best lately; 0: not known."""
    wait_seconds: float | None = None
    """Predicted time until all that waits now has been served; None while no rate is known."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One entry of the dead-letter stream."""

    entry_id: str
    job_id: str
    tenant: str
    reason: str
    attempts: int
    committed_tokens: int


class Queue(Protocol):
    """Everything the rest of Headway asks of a queue. All clocks are the server's."""

    tenant_store: TenantStore
    quota_store: QuotaStore
    """Both are used by ``Admission``, through which jobs are posted; ``submit`` itself asks neither."""
    step_views: StepViews
    """What workers show of their steps while somebody watches."""
    batch_store: BatchStore
    """Records of files and batches."""
    webhook_store: WebhookStore
    """Where tenants are told of ends, and what is on its way there."""

    # -- producers ------------------------------------------------------------------------------------

    async def submit(
        self, job: Job, *, key: str | None = None, reserved: str = "", asked: Job | None = None
    ) -> Submitted:
        """Accept a job, durably and once.

        ``key`` is the last part of the job id (a fresh ULID by default); a call repeated with the same key
        is a no-op that returns ``created=False``. With a text in ``reserved`` the job's end brings exactly
        one Settlement that carries it. ``asked`` is the job as its producer posted it, where its tenant's
        defaults were filled in since: an idempotency key compares that. Raises InvalidJobError,
        IdempotencyConflictError, QueueFullError (by jobs, tokens, wait or deadline), QueueUnavailableError.
        """
        ...

    async def repeat_of(self, job: Job, *, key: str, asked: Job | None = None) -> Submitted | None:
        """The job accepted earlier that this one repeats, by its key or idempotency key; None: it is new.

        Raises IdempotencyConflictError, InvalidJobError, QueueUnavailableError.
        """
        ...

    async def read(self, job_id: str, after: Cursor, *, wait_seconds: float) -> tuple[StreamEvent, ...]:
        """The entries after a cursor, at most 256 of them; waits for the first one up to ``wait_seconds``.

        Empty: nothing new yet; or, without waiting, nothing will follow since the job has ended. A cursor
        beyond the end, of entries that a failover lost, still gets the EndEvent. Once the token stream's own
        retention has passed, only START can still be read: the kept answer as one TokenEvent per choice, then
        the EndEvent; any other cursor raises UnknownJobError and says to fetch the result. Raises
        UnknownJobError.
        """
        ...

    async def result(self, job_id: str) -> JobResult | None:
        """The final answer, or None while the job is queued or running. Raises UnknownJobError."""
        ...

    async def cancel(self, job_id: str, reason: str) -> Cancelled:
        """Ask for the end of a job. Raises UnknownJobError."""
        ...

    async def job(self, job_id: str) -> Job:
        """The job as it was accepted. Raises UnknownJobError; InvalidJobError if a raw body is no job."""
        ...

    async def forget(self, job_id: str) -> None:
        """Keep nothing of a job that has ended: neither its body nor its answer.

        Raises UnknownJobError, InvalidJobError while it has not ended.
        """
        ...

    async def status(self, job_id: str) -> JobStatus:
        """The job's record. Raises UnknownJobError."""
        ...

    # -- consumers ------------------------------------------------------------------------------------

    async def claim(
        self, model: str, worker_id: str, room: int, *, least: Priority = Priority.BATCH
    ) -> tuple[Claim, ...]:
        """Take up to ``room`` jobs of the class ``least`` and better ones, the best first.

        In a class returned ones come first, then the tenant with the smallest virtual time. It pays for its
        job, by estimate now and by what it took at the end, divided by its weight; one that begins to wait
        gets no credit for the time before. Inside a tenant the earliest deadline goes first. An aged job of
        a lower class goes ahead at every fourth claim at the latest. A queue entry that names no job, a job
        whose body is gone, and one past its deadline or cancelled while it waited end here, and do not come.
        """
        ...

    async def emit(self, emits: Sequence[Emit]) -> tuple[Fenced, ...]:
        """Append to token streams, all in one round trip; one outcome per item, in order."""
        ...

    async def finish(self, finishes: Sequence[Finish]) -> tuple[Fenced, ...]:
        """End jobs: last entries, terminal entry, answer, record and lease in one atomic call each."""
        ...

    async def renew(self, claims: Sequence[tuple[str, str]]) -> tuple[Fenced, ...]:
        """Extend leases of ``(job id, token)`` pairs; the reply carries cancels and losses."""
        ...

    async def release(self, claims: Sequence[tuple[str, str]]) -> tuple[Fenced, ...]:
        """Hand jobs back unfinished (drain): front of their band, attempts not counted."""
        ...

    async def wait(
        self, model: str, worker_id: str, *, for_work: Priority | None, timeout_seconds: float
    ) -> Wakeup:
        """Sleep until a job of the class ``for_work`` or a better one (None: of none) may be claimable, a job
        of ours is cancelled, or time is up."""
        ...

    async def heartbeat(self, card: WorkerCard, *, ttl_seconds: float) -> None:
        """Say that this worker lives; it is forgotten ``ttl_seconds`` after its last heartbeat."""
        ...

    async def farewell(self, worker_id: str) -> None:
        """Remove a worker from the registry at the end of its drain."""
        ...

    # -- anyone ---------------------------------------------------------------------------------------

    async def workers(self) -> tuple[WorkerCard, ...]:
        """The workers that live now."""
        ...

    async def models(self) -> tuple[str, ...]:
        """Every model that a worker has ever served here, alive or not."""
        ...

    async def reap(self, model: str) -> Reaped:
        """Take back jobs whose lease has ended. Safe to call from any number of processes."""
        ...

    async def expire_worker(self, model: str, worker_id: str) -> int:
        """End the leases of a worker known to be dead, so that its jobs move on at once; returns how many."""
        ...

    async def depth(self, model: str) -> LaneDepth:
        """How many jobs wait and run."""
        ...

    async def dead_letters(self, model: str, limit: int = 100) -> tuple[DeadLetter, ...]:
        """The newest entries of the dead-letter stream."""
        ...

    async def redrive(self, model: str, entry_id: str, *, key: str | None = None) -> Submitted:
        """Post a dead letter's body as a new job, and remove the letter, in one step.

        Its idempotency key does not count, its deadline counts anew. Raises UnknownJobError, QueueFullError.
        """
        ...

    async def purge(self, model: str, entry_ids: Sequence[str] | None = None) -> int:
        """Remove dead letters, by default all, and forget their bodies; returns how many there were."""
        ...

    async def retry(self, job_id: str, *, key: str | None = None) -> Submitted:
        """Post the body of a job that has ended as a new job. Raises UnknownJobError, QueueFullError."""
        ...

    async def set_weights(self, model: str, weights: Mapping[str, float]) -> None:
        """Replace all tenants' weights in a lane, from the next claim on; a tenant without one has 1."""
        ...

    async def tenants(self, model: str) -> tuple[TenantBacklog, ...]:
        """Who waits, by band, the next to be served first."""
        ...

    async def waiting_jobs(
        self, model: str, *, tenant: str | None = None, limit: int = 100
    ) -> tuple[JobStatus, ...]:
        """Waiting jobs: band by band, returned ones first, then tenant by tenant in the order of its turn."""
        ...

    async def running_jobs(self, model: str, limit: int = 100) -> tuple[JobStatus, ...]:
        """Running jobs, the one whose lease ends first in front."""
        ...

    async def recent_jobs(self, model: str, limit: int = 100) -> tuple[EndedJob, ...]:
        """The newest of the last thousand or so jobs that ended."""
        ...

    async def usage(
        self, model: str, days: Sequence[date], tenant: str | None = None
    ) -> tuple[DayUsage, ...]:
        """What each tenant used on these days with a model, each job counted once; kept for 93 days.

        By day and tenant; a day has 10,001 rows at most, or the one of ``tenant``.
        """
        ...

    async def settlements(self, model: str, limit: int = 100) -> tuple[Settlement, ...]:
        """The oldest ends that the quotas have not taken in."""
        ...

    async def settled(self, model: str, entry_ids: Sequence[str]) -> None:
        """Remove settlements that the quotas have taken in."""
        ...

    async def check_writes(self, model: str) -> None:
        """Return if a job of this model could be written now; writes nothing.

        Raises QueueUnavailableError with the server's reason, ServerUnsuitableError.
        """
        ...

    async def check_server(self) -> tuple[str, ...]:
        """Prepare the server; returns warnings. Raises ServerUnsuitableError, QueueUnavailableError."""
        ...

    async def close(self) -> None:
        """Release connections. The queue itself keeps its contents."""
        ...
