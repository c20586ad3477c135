"""The jobs that ``headway jobs list`` shows: waiting, running, and ended lately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from headway.queueing.backlog import EndedJob
from headway.queueing.client import Client
from headway.queueing.events import JobState, JobStatus
from headway.queueing.protocol import Queue
from headway.services.columns import Column, table
from headway.services.connection import locate
from headway.services.job_commands import note_unserved, with_client
from headway.services.units import show_duration

ALL_ENDED: Final = 2000
"""More than the queue keeps of them."""
ALL_RUNNING: Final = 10_000


class Stage(StrEnum):
    """Where a job is, in the words of the command line."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


STAGE_OF: Final = {
    JobState.QUEUED: Stage.WAITING,
    JobState.RUNNING: Stage.RUNNING,
    JobState.FINISHED: Stage.ENDED,
}


@dataclass(frozen=True, slots=True)
class ListedJob:
    """One line of the list; a line of its JSON. Times are the server's, in milliseconds since the epoch."""

    job_id: str
    state: Stage
    reason: str | None
    """Why it ended."""
    tenant: str
    priority: str
    tokens: int
    worker: str | None
    created_ms: int
    since_ms: int
    """When it came into this state."""


@dataclass(frozen=True, slots=True)
class JobList:
    """``waiting`` and ``running`` count all jobs; None where the list is one tenant's."""

    jobs: tuple[ListedJob, ...]
    is_cut: bool
    waiting: int | None
    running: int | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which jobs to list; ``limit`` is per state."""

    tenant: str | None
    state: Stage | None
    model: str | None
    limit: int


def list_jobs(wanted: Wanted, redis_url: str | None, state_dir: Path) -> JobList:
    """The running jobs, the waiting ones in the order of their turn, the newest ends. Raises ServiceError."""
    url, _ = locate(redis_url, state_dir)

    async def find(client: Client) -> JobList:
        return await _find(client, wanted)

    return with_client(url, find)


async def models_of(client: Client, model: str | None) -> tuple[str, ...]:
    """The model that was named, or every model ever served here."""
    if model is None:
        return await client.queue.models()
    await note_unserved(client, model, "")
    return (model,)


async def _find(client: Client, wanted: Wanted) -> JobList:
    found: dict[Stage, list[ListedJob]] = {stage: [] for stage in (Stage.RUNNING, Stage.WAITING, Stage.ENDED)}
    waiting = running = 0
    for model in await models_of(client, wanted.model):
        for stage in found:
            if wanted.state in {None, stage}:
                found[stage] += await _of_lane(client.queue, model, stage, wanted)
        depth = await client.queue.depth(model)
        waiting, running = waiting + sum(depth.queued.values()), running + depth.running
    found[Stage.ENDED].sort(key=lambda job: -job.since_ms)
    return JobList(
        jobs=tuple(job for jobs in found.values() for job in jobs[: wanted.limit]),
        is_cut=any(len(jobs) > wanted.limit for jobs in found.values()),
        waiting=waiting if wanted.tenant is None else None,
        running=running if wanted.tenant is None else None,
    )


async def _of_lane(queue: Queue, model: str, stage: Stage, wanted: Wanted) -> list[ListedJob]:
    """One more than the limit, where there are more."""
    one_more = wanted.limit + 1
    jobs: Sequence[JobStatus | EndedJob]
    match stage:
        case Stage.WAITING:
            jobs = await queue.waiting_jobs(model, tenant=wanted.tenant, limit=one_more)
        case Stage.RUNNING:
            jobs = await queue.running_jobs(model, one_more if wanted.tenant is None else ALL_RUNNING)
        case Stage.ENDED:
            jobs = await queue.recent_jobs(model, one_more if wanted.tenant is None else ALL_ENDED)
    mine = [job for job in jobs if wanted.tenant in {None, job.tenant}]
    return [_listed(job) for job in mine[:one_more]]


def _listed(job: JobStatus | EndedJob) -> ListedJob:
    if isinstance(job, EndedJob):
        return ListedJob(
            job_id=job.job_id,
            state=Stage.ENDED,
            reason=str(job.reason),
            tenant=job.tenant,
            priority=str(job.priority),
            tokens=job.completion_tokens,
            worker=None,
            created_ms=job.created_ms,
            since_ms=job.ended_ms,
        )
    return ListedJob(
        job_id=job.job_id,
        state=STAGE_OF[job.state],
        reason=None,
        tenant=job.tenant,
        priority=str(job.priority),
        tokens=job.committed_tokens,
        worker=job.worker,
        created_ms=job.created_ms,
        since_ms=job.claimed_ms if job.state is JobState.RUNNING else job.created_ms,
    )


def as_json(job: ListedJob) -> dict[str, Any]:
    """A line for scripts."""
    return asdict(job)


_COLUMNS: Final = (
    Column("STATE"),
    Column("SINCE", is_number=True),
    Column("TENANT", may_shrink=True),
    Column("CLASS", may_go=2),
    Column("TOKENS", is_number=True, may_go=1),
    Column("WORKER", may_shrink=True, may_go=3),
    Column("JOB"),
)


def as_lines(found: JobList, now_ms: int, width: int | None) -> list[str]:
    """The table for people, and how much there is in all."""
    rows = [
        (
            job.reason or job.state,
            show_duration((now_ms - job.since_ms) / 1000),
            job.tenant,
            job.priority,
            f"{job.tokens:,}",
            job.worker or "",
            job.job_id,
        )
        for job in found.jobs
    ]
    lines = table(_COLUMNS, rows, width) if rows else ["no such job"]
    if found.waiting is not None:
        lines += ["", f"{found.waiting:,} waiting, {found.running:,} running"]
        lines[-1] += "; there are more than shown: --limit N" if found.is_cut else ""
    elif found.is_cut:
        lines += ["", "there are more than shown: --limit N"]
    return lines
