"""Who may watch through the console: anybody in open mode, else an administrator."""

from __future__ import annotations

from starlette.requests import Request

from headway.gateway.admins import Admins
from headway.gateway.callers import Callers
from headway.gateway.errors import ApiError


class ConsoleGuard:
    """A dependency of the console's endpoints."""

    def __init__(self, callers: Callers, admins: Admins) -> None:
        self._callers = callers
        self._admins = admins

    async def __call__(self, request: Request) -> None:
        """Let the request pass, or raise ApiError 401, 403, 503: a tenant's key shows no other tenants."""
        if not await self._is_open(request):
            await self._admins.require(request)

    async def _is_open(self, request: Request) -> bool:
        try:
            return await self._callers.tenant_of(request.headers) is None
        except ApiError as error:
            if error.status != 401:
                raise
            return False
