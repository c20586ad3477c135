"""The workers of the fleet, as ``headway workers`` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from headway.queueing.client import Client
from headway.queueing.worker_card import WorkerCard
from headway.services.columns import Column, table
from headway.services.connection import locate
from headway.services.job_commands import with_client
from headway.services.units import show_duration

_COLUMNS: Final = (
    Column("WORKER", may_shrink=True),
    Column("MODEL", may_shrink=True),
    Column("STATE"),
    Column("RUNNING", is_number=True),
    Column("WAITING", is_number=True),
    Column("KV", is_number=True),
    Column("TOKENS/S", is_number=True),
    Column("STEP", is_number=True, may_go=2),
    Column("HEARD", is_number=True),
    Column("VERSION", may_go=3),
)


def list_workers(redis_url: str | None, state_dir: Path) -> tuple[WorkerCard, ...]:
    """The workers that live now, by name. Raises ServiceError."""
    url, _ = locate(redis_url, state_dir)

    async def find(client: Client) -> tuple[WorkerCard, ...]:
        return await client.queue.workers()

    return with_client(url, find)


def as_json(card: WorkerCard) -> dict[str, Any]:
    """A line for scripts."""
    return asdict(card)


def as_lines(cards: Sequence[WorkerCard], width: int | None) -> list[str]:
    """The table for people. STEP: age of the last step while there is work; HEARD: of the heartbeat."""
    if not cards:
        return ["no worker is alive"]
    rows = [
        (
            card.worker_id,
            card.model,
            card.state,
            str(card.running),
            str(card.waiting),
            f"{100 * card.kv_used_fraction:.0f}%",
            f"{card.tokens_per_second:,.1f}",
            show_duration(card.step_age_seconds),
            show_duration(card.heartbeat_age_seconds),
            card.version,
        )
        for card in cards
    ]
    return table(_COLUMNS, rows, width)
