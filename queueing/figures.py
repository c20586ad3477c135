"""What ``headway top`` and the console show, at one moment: models, tenants with their shares, workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from headway.queueing.backlog import EndedJob, TenantBacklog
from headway.queueing.events import JobStatus
from headway.queueing.messages import Priority
from headway.queueing.protocol import LaneDepth, Queue
from headway.queueing.worker_card import WorkerCard

LATELY_MS: Final = 60_000
_RUNNING_LOOKED_AT: Final = 2000
_ENDED_LOOKED_AT: Final = 2000


@dataclass(frozen=True, slots=True)
class LaneFigures:
    """One model's lane. ``oldest_ms``: when the oldest of the tenants' next jobs was accepted."""

    model: str
    waiting: dict[str, int]
    running: int
    dead_letters: int
    tokens_per_second: float
    """Of its workers together, now."""
    wait_seconds: float | None
    """Predicted for a job that is posted now."""
    oldest_ms: int | None
    virtual_times: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """By class and tenant, of those that wait: service in estimated tokens by weight. What one gains while it
    waits says how it is served beside the others of its class."""


@dataclass(slots=True)
class TenantFigures:
    """One tenant over all models."""

    tenant: str
    weight: float
    waiting: Counter[str] = field(default_factory=Counter[str])
    """By class."""
    running: int = 0
    tokens: int = 0
    """Of its answers: those that run, and those that ended in the last minute."""
    oldest_ms: int | None = None
    share: float = 0.0
    """Its part of all tenants' ``tokens``."""
    due: float | None = None
    """Its weight's part among the tenants that wait; None: it waits for nothing."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One frame."""

    at_ms: int
    lanes: tuple[LaneFigures, ...]
    tenants: tuple[TenantFigures, ...]
    """Who waits most comes first, then who was served most."""
    workers: tuple[WorkerCard, ...]

    def to_json(self) -> dict[str, Any]:
        """One value for scripts."""
        return {
            "at_ms": self.at_ms,
            "models": [asdict(lane) for lane in self.lanes],
            "tenants": [asdict(tenant) | {"waiting": dict(tenant.waiting)} for tenant in self.tenants],
            "workers": [asdict(card) for card in self.workers],
        }


async def look(queue: Queue, now_ms: int) -> Figures:
    """Ask the queue. Jobs move meanwhile, so figures need not add up to the last one."""
    book = await queue.tenant_store.book()
    cards = await queue.workers()
    tenants: dict[str, TenantFigures] = {}
    lanes: list[LaneFigures] = []

    def of(name: str) -> TenantFigures:
        return tenants.setdefault(name, TenantFigures(name, book.limits_of(name).weight))

    for model in await queue.models():
        backlogs = await queue.tenants(model)
        lanes.append(_lane(model, await queue.depth(model), backlogs, cards))
        for backlog in backlogs:
            _add_backlog(of(backlog.tenant), backlog)
        for running in await queue.running_jobs(model, _RUNNING_LOOKED_AT):
            _add_running(of(running.tenant), running)
        for ended in await queue.recent_jobs(model, _ENDED_LOOKED_AT):
            if ended.ended_ms > now_ms - LATELY_MS:
                _add_ended(of(ended.tenant), ended)
    return Figures(now_ms, tuple(lanes), _shared_out(tenants.values()), cards)


def _lane(
    model: str, depth: LaneDepth, backlogs: Sequence[TenantBacklog], cards: Sequence[WorkerCard]
) -> LaneFigures:
    times: dict[str, dict[str, float]] = {}
    for backlog in backlogs:
        times.setdefault(str(backlog.priority), {})[backlog.tenant] = round(backlog.virtual_time, 3)
    oldest = [backlog.next_created_ms for backlog in backlogs if backlog.next_created_ms]
    return LaneFigures(
        model=model,
        waiting={str(band): depth.queued.get(band, 0) for band in Priority},
        running=depth.running,
        dead_letters=depth.dead_letters,
        tokens_per_second=round(sum(card.tokens_per_second for card in cards if card.model == model), 1),
        wait_seconds=depth.wait_seconds,
        oldest_ms=min(oldest, default=None),
        virtual_times=times,
    )


def _add_backlog(tenant: TenantFigures, backlog: TenantBacklog) -> None:
    tenant.weight = backlog.weight  # the one that the lane goes by
    tenant.waiting[str(backlog.priority)] += backlog.jobs
    if backlog.next_created_ms:
        tenant.oldest_ms = min(tenant.oldest_ms or backlog.next_created_ms, backlog.next_created_ms)


def _add_running(tenant: TenantFigures, job: JobStatus) -> None:
    tenant.running += 1
    tenant.tokens += job.committed_tokens


def _add_ended(tenant: TenantFigures, job: EndedJob) -> None:
    tenant.tokens += job.completion_tokens


def _shared_out(tenants: Iterable[TenantFigures]) -> tuple[TenantFigures, ...]:
    known = list(tenants)
    tokens = sum(tenant.tokens for tenant in known)
    weights = sum(tenant.weight for tenant in known if tenant.waiting.total())
    for tenant in known:
        tenant.share = tenant.tokens / tokens if tokens else 0.0
        tenant.due = tenant.weight / weights if tenant.waiting.total() else None
    return tuple(sorted(known, key=lambda each: (-each.waiting.total(), -each.tokens, each.tenant)))
