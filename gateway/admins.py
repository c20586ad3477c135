"""Who may change limits and keys over HTTP: whoever has an administrator's key.

Such a key is either one of the queue's, made with ``headway keys create TENANT --admin``, or the operator's
own, given to the process at its start. Unlike the rest of the API, none of this is ever open: in open mode
anybody could make the first key, and shut everybody else out.
"""

from __future__ import annotations

import hmac
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request

from headway.gateway.errors import NO_RETRY, ApiError
from headway.gateway.request_record import record_of
from headway.queueing.protocol import Queue
from headway.queueing.tenant_book import digest_of

_SCHEME: Final = "bearer "
OPERATOR: Final = "operator"
"""The name, in the log, of the key that the process was started with."""
_HOW: Final = (
    "an operator makes one with `headway keys create TENANT --admin`, or starts the gateway with "
    "HEADWAY_ADMIN_KEY (docs/admin.md)"
)


class Admins:
    """Tells administrators; ``operator_digest``: SHA-256 of the operator's own key, empty: there is none."""

    def __init__(self, queue: Queue, operator_digest: str) -> None:
        self._queue = queue
        self._operator_digest = operator_digest

    async def require(self, request: Request) -> None:
        """A dependency of each route for administrators; raises ApiError 401, 403, 503.

        Who it was stands in the request's log line, as the id of the key.
        """
        name = await self.name_of(request.headers)
        if name is None:
            if _secret_of(request.headers) is None:
                raise ApiError(
                    401,
                    f"give an administrator's key: 'Authorization: Bearer …'; {_HOW}",
                    code="missing_api_key",
                    headers={"www-authenticate": "Bearer"} | NO_RETRY,
                )
            raise ApiError(
                403, f"this key is no administrator's; {_HOW}", code="admin_key_required", headers=NO_RETRY
            )
        record_of(request.scope).fields["admin"] = name

    async def name_of(self, headers: Headers) -> str | None:
        """The administrator whose key the request brings, or None; raises QueueUnavailableError."""
        secret = _secret_of(headers)
        if secret is None:
            return None
        # Both are compared whatever the first one says, and as digests: the time taken tells nothing.
        is_operator = hmac.compare_digest(digest_of(secret), self._operator_digest or "-" * 64)
        key = (await self._queue.tenant_store.book()).key_of(secret)
        if is_operator:
            return OPERATOR
        return key.id if key is not None and key.is_admin else None


def _secret_of(headers: Headers) -> str | None:
    given = headers.get("authorization", "")
    return given[len(_SCHEME) :].strip() if given[: len(_SCHEME)].lower() == _SCHEME else None
