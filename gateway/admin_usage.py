"""``/admin/usage``: what each tenant used on each day, counted at each job's end."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from fastapi import APIRouter
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from headway.gateway.errors import invalid_request
from headway.gateway.gateway import Gateway
from headway.gateway.json_response import json_response
from headway.queueing.day_usage import DAYS_KEPT, DayUsage
from headway.queueing.ids import is_model_name

USUAL_DAYS: Final = 7


def admin_usage_routes(gateway: Gateway) -> APIRouter:
    """The usage endpoint."""
    router = APIRouter()

    @router.get("/admin/usage")
    async def usage(request: Request) -> Response:
        """By day, tenant and model, from ``from`` to ``to`` (days of UTC, both included).

        ``tenant`` and ``model`` choose some. Days without a job have no row.
        """
        query = request.query_params
        first, last = _days(query, datetime.fromtimestamp(gateway.wall_clock(), UTC).date())
        days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
        rows: list[DayUsage] = []
        for model in await _models(gateway, query.get("model")):
            rows += await gateway.queue.usage(model, days)
        tenant = query.get("tenant")
        shown = [_usage_object(row) for row in sorted(rows) if tenant in {None, row.tenant}]
        return json_response(
            {"object": "list", "from": first.isoformat(), "to": last.isoformat(), "data": shown}
        )

    return router


async def _models(gateway: Gateway, asked: str | None) -> tuple[str, ...]:
    if asked is None:
        return await gateway.queue.models()
    if not is_model_name(asked):
        raise invalid_request(f"{asked[:140]!r} is not a model name", param="model")
    return (asked,)


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


def _usage_object(row: DayUsage) -> dict[str, Any]:
    return row.shown() | {"total_tokens": row.prompt_tokens + row.completion_tokens}
