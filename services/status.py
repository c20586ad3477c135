"""What runs on this machine, or in a fleet, as ``headway status`` reports it. Scripts rely on its JSON."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headway.services.columns import Column, table, terminal_width
from headway.services.connection import check_url, close_queue, not_reachable, open_queue
from headway.services.settings import mask_password
from headway.services.state import RunningBatch, RunningPart, StateDir, UpState
from headway.services.terminal import short_path

if TYPE_CHECKING:  # `headway status` on this machine needs no Redis client
    from headway.queueing.worker_card import WorkerCard


@dataclass(frozen=True, slots=True)
class PartStatus:
    """One process: None where there is none, or where it is not ours to know (an external server's pid)."""

    pid: int | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker. State: starting | ready | draining | restarting."""

    id: str
    pid: int | None
    model: str
    state: str


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """The batch service. State: as a worker's."""

    pid: int | None
    state: str


@dataclass(frozen=True, slots=True)
class Status:
    """The contract of ``headway status --json``; ``ready``: a job posted now is answered.

    The JSON is for whoever may use the queue: its URL works as it is, with the password if it has one. The
    table, messages and logs mask it.
    """

    ready: bool = False
    gateway: PartStatus = PartStatus()
    redis: PartStatus = PartStatus()
    workers: tuple[WorkerStatus, ...] = ()
    batch: BatchStatus | None = None
    """None: there is none here, or it is not ours to know."""

    @property
    def runs(self) -> bool:
        """Whether there is anything to report on."""
        return self.gateway.url is not None or self.redis.url is not None or bool(self.workers)

    def to_json(self) -> dict[str, object]:
        """The fields in the order that is documented."""
        return asdict(self)

    def table(self) -> list[str]:
        """The same for a person, where anything runs."""
        rows = [("redis", self.redis.pid, "", "", mask_password(self.redis.url or ""))]
        if self.gateway.url is not None:
            rows.append(("gateway", self.gateway.pid, "", "", self.gateway.url))
        rows += [(worker.id, worker.pid, worker.state, worker.model, "") for worker in self.workers]
        if self.batch is not None:
            rows.append(("batch", self.batch.pid, self.batch.state, "", ""))
        columns = (
            Column("NAME"),
            Column("PID", is_number=True),
            Column("STATE"),
            Column("MODEL"),
            Column("URL"),
        )
        cells = [[str(cell or "") for cell in row] for row in rows]
        return ["ready" if self.ready else "not ready", "", *table(columns, cells, terminal_width())]


def status_of(state: UpState) -> Status:
    """The status of a running ``headway up``: its claims, corrected by which processes really live."""
    redis_lives = not state.is_redis_ours or (state.redis.mark is not None and state.redis.mark.lives)
    gateway_lives = state.gateway.mark is not None and state.gateway.mark.lives
    workers = tuple(
        WorkerStatus(
            worker.worker_id,
            worker.mark.pid if worker.mark is not None and worker.mark.lives else None,
            worker.model,
            worker.state if worker.mark is not None and worker.mark.lives else "restarting",
        )
        for worker in state.workers
    )
    serves = any(worker.state == "ready" for worker in workers)
    return Status(
        ready=state.ready and redis_lives and gateway_lives and serves,
        gateway=_part(state.gateway) if gateway_lives else PartStatus(),
        redis=_part(state.redis) if redis_lives else PartStatus(),
        workers=workers,
        batch=None if state.batch is None else _batch(state.batch),
    )


def _batch(batch: RunningBatch) -> BatchStatus:
    if batch.mark is None:  # not started yet, or between two lives: ``up`` knows which
        return BatchStatus(None, batch.state)
    return BatchStatus(batch.mark.pid, batch.state) if batch.mark.lives else BatchStatus(None, "restarting")


def _part(part: RunningPart) -> PartStatus:
    return PartStatus(None if part.mark is None else part.mark.pid, part.url)


def status_of_fleet(redis_url: str, cards: tuple[WorkerCard, ...]) -> Status:
    """The status of workers that registered at one server, wherever they run."""
    return Status(
        ready=any(card.state == "ready" for card in cards),
        redis=PartStatus(None, redis_url),
        workers=tuple(WorkerStatus(card.worker_id, card.pid, card.model, card.state) for card in cards),
    )


def find_status(state_dir: Path, redis_url: str | None) -> Status:
    """The status of the ``headway up`` in a state dir, or of the fleet at another server.

    Raises NotReachableError when that server does not answer.
    """
    state = StateDir(state_dir).read_live()
    if state is not None and redis_url in (None, state.redis.url):
        return status_of(state)
    if redis_url is None:
        return Status()
    cards = asyncio.run(_registered(check_url(redis_url)))
    return status_of_fleet(redis_url, cards) if cards else Status()


def nothing_runs(state_dir: Path, redis_url: str | None) -> str:
    """What to say instead of a table: where nothing was found, and what to type."""
    if redis_url is not None:
        return f"no worker is registered at {mask_password(redis_url)}"
    place = short_path(StateDir(state_dir).root)
    return f"nothing runs in {place} (start it: headway up; or name its --state-dir)"


async def _registered(url: str) -> tuple[WorkerCard, ...]:
    from headway.queueing.errors import QueueUnavailableError

    queue = open_queue(url)
    try:
        return await queue.workers()
    except QueueUnavailableError as error:
        raise not_reachable(url, error) from None
    finally:
        await close_queue(queue)
