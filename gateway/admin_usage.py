"""``/admin/usage``: what each tenant used on each day, counted at each job's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from fastapi import APIRouter
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from headway.gateway.errors import invalid_request
from headway.gateway.gateway import Gateway
from headway.gateway.json_response import json_response
from headway.gateway.listing import limit_of, list_object, unknown_cursor
from headway.queueing.day_usage import DAYS_KEPT, OTHERS, DayUsage
from headway.queueing.ids import is_model_name
from headway.queueing.protocol import Queue
from headway.queueing.tenants import is_tenant

USUAL_DAYS: Final = 7
USUAL_ROWS: Final = 1000
MOST_ROWS: Final = 10_000

Position = tuple[date, str, str]
"""Of a row: day, model, tenant. Rows are in this order, so that one day of one model is read at a time."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Which rows, and how many of them."""

    days: Sequence[date]
    model: str | None
    tenant: str | None
    after: Position | None
    limit: int


def admin_usage_routes(gateway: Gateway) -> APIRouter:
    """The usage endpoint."""
    router = APIRouter()

    @router.get("/admin/usage")
    async def usage(request: Request) -> Response:
        """By day, model and tenant, from ``from`` to ``to`` (days of UTC, both included), page by page.

        ``tenant`` and ``model`` choose some. Days without a job have no row.
        """
        asked = _asked(request.query_params, datetime.fromtimestamp(gateway.wall_clock(), UTC).date())
        rows = await _rows(gateway.queue, asked)
        shown = [_usage_object(row) for row in rows[: asked.limit]]
        page = list_object(shown, has_more=len(rows) > asked.limit)
        return json_response(
            page | {"from": asked.days[0].isoformat(), "to": asked.days[-1].isoformat()},
        )

    return router


async def _rows(queue: Queue, asked: Asked) -> list[DayUsage]:
    """The rows of a page and one more, if there is one: at most a page and a day of one model at hand."""
    models = sorted(await queue.models()) if asked.model is None else [asked.model]
    rows: list[DayUsage] = []
    for day in asked.days:
        for model in models:
            if asked.after is not None and (day, model) < asked.after[:2]:
                continue
            found = await queue.usage(model, [day], asked.tenant)
            rows += [row for row in found if asked.after is None or _position(row) > asked.after]
            if len(rows) > asked.limit:
                return rows
    return rows


def _asked(query: QueryParams, today: date) -> Asked:
    """What a query asks for; raises ApiError 400."""
    first, last = _days(query, today)
    model, tenant = query.get("model"), query.get("tenant")
    if model is not None and not is_model_name(model):
        raise invalid_request(f"{model[:140]!r} is not a model name", param="model")
    if tenant is not None and tenant != OTHERS and not is_tenant(tenant):
        raise invalid_request(f"{tenant[:140]!r} is not a tenant's name", param="tenant")
    return Asked(
        days=[first + timedelta(days=number) for number in range((last - first).days + 1)],
        model=model,
        tenant=tenant,
        after=_after(query.get("after")),
        limit=limit_of(query, default=USUAL_ROWS, most=MOST_ROWS),
    )


def _after(text: str | None) -> Position | None:
    """The position that a row's id names; raises ApiError 400. The row itself need not be there any more."""
    if text is None:
        return None
    day, _, rest = text.partition("/")
    model, _, tenant = rest.rpartition("/")
    try:
        return date.fromisoformat(day), model, tenant
    except ValueError:
        raise unknown_cursor(text) from None


def _days(query: QueryParams, today: date) -> tuple[date, date]:
    """The first and the last day asked for; raises ApiError 400."""
    last = _day(query, "to") or today
    first = _day(query, "from") or last - timedelta(days=USUAL_DAYS - 1)
    if first > last:
        raise invalid_request("'from' is not after 'to'", param="from")
    if (last - first).days >= DAYS_KEPT:
        raise invalid_request(
            f"'from' to 'to' may be {DAYS_KEPT} days, for as long as usage is kept", param="from"
        )
    return first, last


def _day(query: QueryParams, param: str) -> date | None:
    text = query.get(param)
    if text is None:
        return None
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = date.min
    if not 1970 <= day.year < 9999:
        raise invalid_request(f"'{param}' is a day such as 2026-11-30, not {text[:40]!r}", param=param)
    return day


def _position(row: DayUsage) -> Position:
    return row.day, row.model, row.tenant


def _usage_object(row: DayUsage) -> dict[str, Any]:
    named = {"id": f"{row.day.isoformat()}/{row.model}/{row.tenant}"}
    return named | row.shown() | {"total_tokens": row.prompt_tokens + row.completion_tokens}
