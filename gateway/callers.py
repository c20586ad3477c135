"""Whose request it is: told by its API key, or, as long as there is no key, by what it says itself."""

from __future__ import annotations

from typing import Final

import structlog
from starlette.datastructures import Headers
from starlette.requests import Request

from headway.gateway.errors import ApiError, unavailable
from headway.gateway.open_requests import OpenRequests
from headway.gateway.request_record import record_of
from headway.queueing.errors import QueueingError, unknown_job
from headway.queueing.events import JobStatus
from headway.queueing.protocol import Queue
from headway.queueing.tenant_book import TenantBook

_log = structlog.stdlib.get_logger("headway.gateway")

_SCHEME: Final = "bearer "
DEFAULT_TENANT: Final = "default"
MAX_TENANT_CHARS: Final = 64


class Callers:
    """Identifies callers, and says in the log when the service becomes open or closed."""

    def __init__(self, queue: Queue, open_requests: OpenRequests) -> None:
        self._queue = queue
        self._open_requests = open_requests
        self._was_open: bool | None = None
        self._told: tuple[str, ...] = ()

    async def identify(self, request: Request) -> None:
        """A dependency of each route that serves tenants; raises ApiError 401, 429, 503."""
        request.state.caller = caller = await self.tenant_of(request.headers)
        # In open mode the body may name another tenant: nobody is protected from anybody there anyway.
        tenant = caller or request.headers.get("x-tenant", DEFAULT_TENANT)
        record_of(request.scope).leave = self._open_requests.enter(tenant[:MAX_TENANT_CHARS])

    async def tenant_of(self, headers: Headers) -> str | None:
        """The tenant of the request's key; None in open mode. Raises ApiError 401, 503."""
        book = await self._queue.tenant_store.book()
        if not book.is_readable:
            # Without the keys nobody can be told from anybody.
            raise unavailable(
                "this gateway's Redis user may not read the API keys (keys:{sys}): see docs/wire-protocol.md",
                reason="queue_unsuitable",
                retry_after_seconds=30,
            )
        self._note(book)
        if book.is_open:
            return None
        given = headers.get("authorization", "")
        if given[: len(_SCHEME)].lower() != _SCHEME:
            raise _unauthorized(
                "give an API key: 'Authorization: Bearer hw-…'; an operator makes one with "
                "`headway keys create TENANT`",
                code="missing_api_key",
            )
        tenant = book.tenant_of(given[len(_SCHEME) :].strip())
        if tenant is None:
            raise _unauthorized(
                "this API key is not known here, or was revoked; an operator makes one with "
                "`headway keys create TENANT`",
                code="invalid_api_key",
            )
        return tenant

    async def is_open(self) -> bool | None:
        """Whether requests need no key; None while the queue cannot tell."""
        try:
            return (await self._queue.tenant_store.book()).is_open
        except QueueingError:
            return None

    async def announce(self) -> None:
        """Say in the log whether keys are asked for; raises QueueUnavailableError."""
        self._note(await self._queue.tenant_store.book())

    def _note(self, book: TenantBook) -> None:
        if book.complaints != self._told:
            for complaint in book.complaints:
                _log.warning(complaint)
            self._told = book.complaints
        is_open = book.is_open
        if is_open is self._was_open:
            return
        self._was_open = is_open
        if is_open:
            _log.info(
                "open mode: no API key exists, so anybody who reaches this port may post as any tenant; "
                "`headway keys create TENANT` makes the first key and closes it"
            )
        else:
            _log.info("API keys are asked for")

    async def own_job(self, request: Request, job_id: str) -> JobStatus:
        """The record of a job that the caller may see; raises UnknownJobError for anybody else's."""
        status = await self._queue.status(job_id)
        caller = caller_of(request)
        if caller is not None and status.tenant != caller:
            raise unknown_job(job_id)
        return status

    async def check_own(self, request: Request, job_id: str) -> None:
        """Raise UnknownJobError for a job of another tenant; costs nothing in open mode."""
        if caller_of(request) is not None:
            await self.own_job(request, job_id)


def caller_of(request: Request) -> str | None:
    """The tenant that the request's key stands for; None in open mode."""
    caller: str | None = request.state.caller
    return caller


def _unauthorized(message: str, *, code: str) -> ApiError:
    return ApiError(
        401, message, code=code, headers={"www-authenticate": "Bearer", "x-should-retry": "false"}
    )
