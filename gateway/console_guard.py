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
        """Let the request pass, or raise ApiError 401, 403, 503."""
        if await self._admins.name_of(request.headers) is not None:
            return
        if await self._callers.tenant_of(request.headers) is not None:
            raise ApiError(
                403,
                "the console shows all tenants, so it asks for an administrator's key, not for a tenant's",
                code="admin_key_required",
                headers={"x-should-retry": "false"},
            )
