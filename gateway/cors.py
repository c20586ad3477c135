"""Which web pages' scripts may call, where an operator allows any at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
_SENT: Final = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "Last-Event-ID",
    "X-Deadline",
    "X-On-Disconnect",
    "X-Priority",
    "X-Request-Id",
    "X-Tenant",
    "traceparent",
)
# The official client's own headers, which a browser asks about one by one.
_OF_OPENAIS_CLIENT: Final = (
    *("x-stainless-arch", "x-stainless-lang", "x-stainless-os", "x-stainless-package-version"),
    *("x-stainless-retry-count", "x-stainless-runtime", "x-stainless-runtime-version"),
    *("x-stainless-timeout", "x-stainless-helper-method", "openai-organization", "openai-project"),
)
_SHOWN: Final = (
    *("Location", "Retry-After", "retry-after-ms", "x-should-retry", "x-headway-reason"),
    *("x-request-id", "x-headway-job-id", "openai-processing-ms"),
    *(
        f"x-ratelimit-{what}-{kind}"
        for what in ("limit", "remaining", "reset")
        for kind in ("requests", "tokens")
    ),
)
_KEPT_SECONDS: Final = 600


def cors_options(origins: Sequence[str]) -> dict[str, Any]:
    """For starlette's middleware. Keys come in a header, so no cookie is ever asked for."""
    return {
        "allow_origins": list(origins),
        "allow_methods": _METHODS,
        "allow_headers": (*_SENT, *_OF_OPENAIS_CLIENT),
        "expose_headers": _SHOWN,
        "max_age": _KEPT_SECONDS,
    }
