"""Whose files and batches a request may see."""

from __future__ import annotations

import re

from starlette.requests import Request

from headway.gateway.callers import caller_of
from headway.gateway.errors import invalid_request
from headway.gateway.producer import producer_terms
from headway.queueing.messages import TENANT_PATTERN

_TENANT = re.compile(TENANT_PATTERN)


def tenant_of(request: Request) -> str:
    """The tenant of the request's key; in open mode that of ``X-Tenant``, else ``default``.

    Raises ApiError 400.
    """
    named = producer_terms(request.headers, {}, caller_of(request)).get("tenant", "default")
    if not isinstance(named, str) or _TENANT.fullmatch(named) is None:
        raise invalid_request("a tenant has 1 to 64 of the characters A-Z a-z 0-9 _ . @ -", param="tenant")
    return named
