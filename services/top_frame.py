"""One frame of ``headway top`` for people, as high and wide as there is room."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from headway.queueing.figures import Figures, LaneFigures, TenantFigures
from headway.queueing.messages import Priority
from headway.services import worker_listing
from headway.services.columns import Column, table
from headway.services.units import show_duration

_BANDS: Final = tuple(Column(band.upper(), is_number=True) for band in Priority)
_LANE_COLUMNS: Final = (
    Column("MODEL", may_shrink=True),
    Column("RUNNING", is_number=True),
    *_BANDS,
    Column("OLDEST", is_number=True),
    Column("WAIT", is_number=True, may_go=2),
    Column("TOKENS/S", is_number=True),
    Column("DEAD", is_number=True, may_go=1),
)
_TENANT_COLUMNS: Final = (
    Column("TENANT", may_shrink=True),
    Column("WEIGHT", is_number=True, may_go=2),
    Column("DUE", is_number=True),
    Column("SHARE", is_number=True),
    Column("RUNNING", is_number=True),
    *_BANDS,
    Column("OLDEST", is_number=True, may_go=1),
)
_FEWEST: Final = 3
"""Rows of a table that are shown on the lowest screen."""


def frame(figures: Figures, width: int | None, height: int) -> list[str]:
    """The lines: totals, models, tenants, workers; at most ``height`` of them where that leaves enough."""
    head = [_head(figures), "", *_lanes(figures, width)]
    room = height - len(head) - 2
    workers = _workers(figures, width, max(_FEWEST, room // 3))
    tenants = _tenants(figures, width, max(_FEWEST, room - len(workers) - 2))
    return [*head, "", *tenants, "", *workers]


def _head(figures: Figures) -> str:
    at = datetime.fromtimestamp(figures.at_ms / 1000, UTC)
    waiting = sum(sum(lane.waiting.values()) for lane in figures.lanes)
    running = sum(lane.running for lane in figures.lanes)
    rate = sum(lane.tokens_per_second for lane in figures.lanes)
    dead = sum(lane.dead_letters for lane in figures.lanes)
    return (
        f"headway  {at:%H:%M:%S} UTC  {waiting:,} waiting  {running:,} running  {rate:,.1f} tokens/s"
        f"  {dead:,} dead {'letter' if dead == 1 else 'letters'}"
    )


def _lanes(figures: Figures, width: int | None) -> list[str]:
    if not figures.lanes:
        return ["no worker has served a model here yet"]
    return table(_LANE_COLUMNS, [_lane(lane, figures.at_ms) for lane in figures.lanes], width)


def _lane(lane: LaneFigures, now_ms: int) -> tuple[str, ...]:
    return (
        lane.model,
        f"{lane.running:,}",
        *(f"{lane.waiting[band]:,}" for band in Priority),
        _age(lane.oldest_ms, now_ms),
        "" if lane.wait_seconds is None else show_duration(lane.wait_seconds),
        f"{lane.tokens_per_second:,.1f}",
        f"{lane.dead_letters:,}",
    )


def _tenants(figures: Figures, width: int | None, room: int) -> list[str]:
    """At most ``room`` tenants; the others in one line."""
    tenants = figures.tenants
    if not tenants:
        return ["no tenant waits or was served in the last minute"]
    shown = tenants if len(tenants) <= room else tenants[: max(1, room - 1)]
    lines = table(_TENANT_COLUMNS, [_tenant(each, figures.at_ms) for each in shown], width)
    return lines + _others(tenants[len(shown) :])


def _others(tenants: Sequence[TenantFigures]) -> list[str]:
    if not tenants:
        return []
    waiting, running = sum(each.waiting.total() for each in tenants), sum(each.running for each in tenants)
    share = sum(each.share for each in tenants)
    return [f"and {len(tenants):,} more: {waiting:,} waiting, {running:,} running, {share:.0%} of the tokens"]


def _tenant(tenant: TenantFigures, now_ms: int) -> tuple[str, ...]:
    return (
        tenant.tenant,
        f"{tenant.weight:g}",
        "" if tenant.due is None else f"{tenant.due:.0%}",
        f"{tenant.share:.0%}",
        f"{tenant.running:,}",
        *(f"{tenant.waiting[band]:,}" for band in Priority),
        _age(tenant.oldest_ms, now_ms),
    )


def _workers(figures: Figures, width: int | None, room: int) -> list[str]:
    cards = sorted(figures.workers, key=lambda card: (-card.heartbeat_age_seconds, card.worker_id))
    shown = cards if len(cards) <= room else cards[: max(1, room - 1)]
    lines = worker_listing.as_lines(sorted(shown, key=lambda card: card.worker_id), width)
    left = cards[len(shown) :]
    if left:
        lines.append(
            f"and {len(left):,} more, heard of more lately: {sum(card.running for card in left):,} running"
        )
    return lines


def _age(since_ms: int | None, now_ms: int) -> str:
    return "" if since_ms is None else show_duration((now_ms - since_ms) / 1000)
