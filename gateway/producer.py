"""Who posts a job and on which terms: tenant, band, deadline, idempotency, what a disconnect means.

Each term may be a header, a field of the body, or both if they agree. A proxy that sets ``X-Tenant`` from its
own authentication therefore cannot be overruled by a body, nor by a second header of that name. Where API
keys exist, the key alone decides on the tenant, whatever else the request says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.datastructures import Headers

from headway.gateway.errors import ApiError, invalid_request
from headway.queueing.messages import TRACEPARENT_PATTERN

_HEADERS: Final = {
    "tenant": "X-Tenant",
    "priority": "X-Priority",
    "deadline_seconds": "X-Deadline",
    "idempotency_key": "Idempotency-Key",
    "on_disconnect": "X-On-Disconnect",
}

LONGEST_KEY: Final = 255
"""As the job contract has it."""


def producer_terms(headers: Headers, body: Mapping[str, object], caller: str | None = None) -> dict[str, Any]:
    """The terms under the job contract's field names, those given only; raises ApiError 400.

    ``caller``: the tenant that the request's API key stands for, None in open mode.
    """
    terms: dict[str, Any] = {}
    for name, header in _HEADERS.items():
        if name == "tenant" and caller is not None:
            terms[name] = caller
            continue
        in_body = body.get(name)
        in_header = _header_value(name, header, headers)
        if in_body is not None and in_header is not None and in_body != in_header:
            raise _conflict(name, header)
        value = in_body if in_body is not None else in_header
        if value is not None:
            terms[name] = value
    traceparent = headers.get("traceparent", "")
    # A malformed traceparent is ignored, as W3C Trace Context asks.
    if re.fullmatch(TRACEPARENT_PATTERN, traceparent) and "traceparent" not in body:
        terms["traceparent"] = traceparent
    return terms


def idempotency_key_of(headers: Headers) -> str | None:
    """The header's key, where no job is posted and no body can name it; raises ApiError 400."""
    key = _header_value("idempotency_key", _HEADERS["idempotency_key"], headers)
    if key is None or (isinstance(key, str) and 1 <= len(key) <= LONGEST_KEY):
        return key
    raise invalid_request(
        f"Idempotency-Key: must be a text of 1 to {LONGEST_KEY} characters", param=_HEADERS["idempotency_key"]
    )


def _header_value(name: str, header: str, headers: Headers) -> str | float | None:
    values = headers.getlist(header)
    if len(set(values)) > 1:
        # A proxy that adds its header without taking away the client's: neither may win.
        raise invalid_request(
            f"the header {header} came more than once", param=name, code="conflicting_terms"
        )
    text = values[0] if values else None
    if text is None or name != "deadline_seconds":
        return text
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise invalid_request("X-Deadline is a number of seconds, such as 30", param=header)
    return seconds


def _conflict(name: str, header: str) -> ApiError:
    return invalid_request(
        f"the header {header} and the body's '{name}' differ: send one of them",
        param=name,
        code="conflicting_terms",
    )
