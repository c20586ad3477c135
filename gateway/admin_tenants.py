"""``/admin/tenants``: who may have how much. A change is in force everywhere within a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from headway.gateway.errors import NO_RETRY, ApiError, invalid_request
from headway.gateway.gateway import Gateway
from headway.gateway.json_body import read_json_object
from headway.gateway.json_response import json_response
from headway.queueing.errors import InvalidTenantError
from headway.queueing.tenant_book import TenantBook
from headway.queueing.tenants import TenantLimits, check_tenant


def admin_tenant_routes(gateway: Gateway) -> APIRouter:
    """The tenants' endpoints."""
    router = APIRouter()

    @router.get("/admin/tenants")
    async def list_tenants() -> Response:
        """Every tenant with limits of its own, by name."""
        book = await gateway.queue.tenant_store.book()
        names = sorted(book.tenants.keys() | book.broken_tenants.keys())
        return json_response({"object": "list", "data": [_tenant_object(name, book) for name in names]})

    @router.post("/admin/tenants", status_code=201)
    async def create_tenant(request: Request) -> Response:
        """Give limits to a tenant that has none: ``{"tenant": …, "rpm": …}``."""
        body = await read_json_object(request, gateway.settings)
        tenant = body.pop("tenant", None)
        if not isinstance(tenant, str):
            raise invalid_request("give the tenant's name", param="tenant", code="missing_required_parameter")
        if tenant in (await gateway.queue.tenant_store.book()).tenants:
            raise ApiError(
                409,
                f"tenant {tenant} has limits already: change them with PATCH /admin/tenants/{tenant}",
                code="tenant_exists",
                param="tenant",
                headers=NO_RETRY,
            )
        return await _set(gateway, tenant, body, status=201)

    @router.get("/admin/tenants/{tenant}")
    async def show_tenant(tenant: str) -> Response:
        """The limits that hold for a tenant, its own or everyone's, and how its account stands."""
        _check_name(tenant)
        book = await gateway.queue.tenant_store.book()
        usage = await gateway.queue.quota_store.usage(tenant, book.limits_of(tenant))
        return json_response(_tenant_object(tenant, book) | {"usage": usage.shown()})

    @router.patch("/admin/tenants/{tenant}")
    async def change_tenant(request: Request, tenant: str) -> Response:
        """Change the limits named, null takes one away; the others stay."""
        return await _set(gateway, tenant, await read_json_object(request, gateway.settings))

    @router.put("/admin/tenants/{tenant}")
    async def replace_tenant(request: Request, tenant: str) -> Response:
        """Set all limits; those not named are taken away."""
        body = await read_json_object(request, gateway.settings)
        return await _set(gateway, tenant, dict.fromkeys(TenantLimits.model_fields) | body)

    @router.delete("/admin/tenants/{tenant}")
    async def remove_tenant(tenant: str) -> Response:
        """Take all of a tenant's limits away; its keys and jobs stay."""
        _check_name(tenant)
        if not await gateway.queue.tenant_store.remove(tenant):
            raise ApiError(
                404,
                f"tenant {tenant} has no limits here; GET /admin/tenants lists those that have",
                code="tenant_not_found",
                param="tenant",
                headers=NO_RETRY,
            )
        return json_response({"tenant": tenant, "object": "tenant", "deleted": True})

    return router


async def _set(
    gateway: Gateway, tenant: str, changes: Mapping[str, object], *, status: int = 200
) -> Response:
    """Change a tenant's limits and show all of them; raises ApiError 400."""
    _check_name(tenant)
    try:
        await gateway.queue.tenant_store.set(tenant, changes)
    except InvalidTenantError as error:
        raise _invalid(error) from None
    book = await gateway.queue.tenant_store.book()
    return json_response(_tenant_object(tenant, book), status=status)


def _check_name(tenant: str) -> None:
    try:
        check_tenant(tenant)
    except InvalidTenantError as error:
        raise invalid_request(str(error), param="tenant") from None


def _invalid(error: InvalidTenantError) -> ApiError:
    code = "unknown_parameter" if "there is no" in str(error) else "invalid_value"
    return invalid_request(str(error), param=error.field or None, code=code)


def _tenant_object(tenant: str, book: TenantBook) -> dict[str, Any]:
    """A tenant's limits, null where there is none."""
    shown = {"tenant": tenant, "object": "tenant"} | book.limits_of(tenant).shown()
    shown["has_own_limits"] = tenant in book.tenants
    if tenant in book.broken_tenants:
        shown["unreadable"] = book.broken_tenants[tenant]
    return shown
