"""Lists as OpenAI pages them: ``limit``, ``after``, ``order``."""

from __future__ import annotations

import re

from starlette.datastructures import QueryParams

from headway.gateway.errors import ApiError, invalid_request
from headway.queueing.batch_store import Order


def limit_of(query: QueryParams, *, default: int, most: int) -> int:
    """How many are asked for; raises ApiError 400."""
    text = query.get("limit")
    if text is None:
        return default
    limit = int(text) if re.fullmatch(r"[0-9]{1,6}", text) else 0
    if not 1 <= limit <= most:
        raise invalid_request(f"'limit' is a number between 1 and {most}", param="limit")
    return limit


def order_of(query: QueryParams) -> Order:
    """Which come first, by their creation; raises ApiError 400."""
    order = query.get("order", "desc")
    if order == "asc":
        return "asc"
    if order == "desc":
        return "desc"
    raise invalid_request("'order' is asc or desc", param="order")


def list_object(items: list[dict[str, object]], *, has_more: bool) -> dict[str, object]:
    """OpenAI's page."""
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }


def unknown_cursor(after: str) -> ApiError:
    """The answer to a cursor that names nothing in the list."""
    return invalid_request(
        f"'after' names {after[:80]!r}, which is not in this list (any more): start again without it",
        param="after",
        code="invalid_cursor",
    )
