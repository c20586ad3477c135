"""What happened to a job, in order, out of its record; ``headway jobs show``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from headway.queueing.client import Client
from headway.queueing.events import JobState, JobStatus
from headway.services.columns import Column, table
from headway.services.connection import locate
from headway.services.job_commands import with_client
from headway.services.job_listing import STAGE_OF
from headway.services.units import show_duration

_OUTCOMES: Final = {"released": "handed back", "lost": "lost"}
_PENDING_LOOKED_AT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Happening:
    """One step of a job's life; ``at_ms`` by the server's clock. Tokens: committed by then."""

    at_ms: int
    event: str
    """accepted | reserved | claimed | resumed | first token | handed back | lost | ended."""
    worker: str | None = None
    tokens: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ShownJob:
    """A job's record, and whether its tenant's quotas know of its end (None: it needed no reservation)."""

    status: JobStatus
    is_settled: bool | None


def show_job(job_id: str, redis_url: str | None, state_dir: Path) -> ShownJob:
    """A job's record. Raises ServiceError."""
    url, _ = locate(redis_url, state_dir)

    async def find(client: Client) -> ShownJob:
        return await shown_job(client, job_id)

    return with_client(url, find)


async def shown_job(client: Client, job_id: str) -> ShownJob:
    """A job's record. Raises UnknownJobError, QueueUnavailableError."""
    status = await client.status(job_id)
    is_settled = None
    if status.reserved:
        is_settled = status.state is JobState.FINISHED and not any(
            each.job_id == job_id for each in await client.queue.settlements(status.model, _PENDING_LOOKED_AT)
        )
    return ShownJob(status, is_settled)


def timeline(status: JobStatus) -> list[Happening]:
    """The steps in their order; of very many claims only the newest are known."""
    steps = [Happening(status.created_ms, "accepted", detail=_terms(status))]
    if status.reserved:
        steps.append(Happening(status.created_ms, "reserved", detail=f"under {status.tenant}'s limits"))
    if status.history and status.history[0].claimed_ms > status.started_ms:
        steps.append(Happening(status.started_ms, "claimed", detail="the first of claims no longer kept"))
    tokens = 0
    for claim in status.history:
        steps.append(_claim(claim.claimed_ms, claim.worker, tokens))
        tokens = claim.committed_tokens
        steps.append(
            Happening(claim.ended_ms, _OUTCOMES.get(claim.outcome, claim.outcome), claim.worker, tokens)
        )
    if status.worker is not None:
        steps.append(_claim(status.claimed_ms, status.worker, tokens))
    _put_first_token(steps, status)
    if status.state is JobState.FINISHED:
        steps.append(
            Happening(status.finished_ms, "ended", status.worker, status.committed_tokens, _ending(status))
        )
    return steps


def _claim(at_ms: int, worker: str, tokens: int) -> Happening:
    return Happening(at_ms, "resumed" if tokens else "claimed", worker, tokens)


def _put_first_token(steps: list[Happening], status: JobStatus) -> None:
    """Behind the claim that brought it: all may have the same millisecond."""
    if status.first_token_ms:
        claims = [at for at, step in enumerate(steps) if step.event == "claimed" and step.worker]
        before = [at for at in claims if steps[at].at_ms <= status.first_token_ms]
        at = before[-1] if before else len(steps) - 1
        steps.insert(at + 1, Happening(status.first_token_ms, "first token", steps[at].worker))


def _terms(status: JobStatus) -> str:
    terms = [f"{status.tenant}, {status.priority}"]
    if status.deadline_ms:
        terms.append(f"deadline {show_duration((status.deadline_ms - status.created_ms) / 1000)}")
    if status.retry_of:
        terms.append(f"again {status.retry_of}")
    return ", ".join(terms)


def _ending(status: JobStatus) -> str:
    parts = [str(status.reason or "")]
    if status.error is not None:
        parts.append(f"{status.error.code}: {status.error.message}")
    elif status.cancel_reason:
        parts.append(status.cancel_reason)
    return ", ".join(parts)


def as_json(shown: ShownJob) -> dict[str, Any]:
    """One value for scripts: the record and its timeline."""
    fields = asdict(shown.status)
    del fields["reserved"], fields["history"]
    return fields | {
        "state": STAGE_OF[shown.status.state],
        "settled": shown.is_settled,
        "timeline": [asdict(step) for step in timeline(shown.status)],
    }


_COLUMNS: Final = (
    Column("TIME (UTC)"),
    Column("AFTER", is_number=True),
    Column("EVENT"),
    Column("TOKENS", is_number=True),
    Column("WORKER", may_shrink=True),
    Column("DETAIL"),
)


def as_lines(shown: ShownJob, width: int | None) -> list[str]:
    """The record and its timeline for people."""
    status = shown.status
    facts = [("job", status.job_id), ("state", STAGE_OF[status.state])]
    if shown.is_settled is not None:
        facts.append(("limits", "settled" if shown.is_settled else "not settled yet"))
    if status.cancel_reason and status.state is not JobState.FINISHED:
        facts.append(("cancel", status.cancel_reason))
    if status.attempts:
        facts.append(("attempts", f"{status.attempts} ended with the worker's loss"))
    facts += [("metadata", f"{name}={value}") for name, value in sorted(status.metadata.items())]
    steps = timeline(status)
    rows = [
        (
            _clock(step.at_ms),
            _offset(step.at_ms - status.created_ms),
            step.event,
            f"{step.tokens:,}" if step.tokens else "",
            step.worker or "",
            step.detail,
        )
        for step in steps
    ]
    day = f"{datetime.fromtimestamp(status.created_ms / 1000, UTC):%Y-%m-%d}"
    facts.append(("accepted", day))
    return [*(f"{name:<10}{value}" for name, value in facts), "", *table(_COLUMNS, rows, width)]


def _clock(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%H:%M:%S}.{at_ms % 1000:03}"


def _offset(ms: int) -> str:
    return f"{ms / 1000:.3f}s" if ms < 60_000 else show_duration(ms / 1000)
