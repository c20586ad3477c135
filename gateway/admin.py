"""``/admin``: tenants' limits, API keys and what was used, for administrators."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from headway.gateway.admin_keys import admin_key_routes
from headway.gateway.admin_tenants import admin_tenant_routes
from headway.gateway.admin_usage import admin_usage_routes
from headway.gateway.gateway import Gateway


def admin_routes(gateway: Gateway) -> APIRouter:
    """The administrators' endpoints."""
    router = APIRouter(dependencies=[Depends(gateway.admins.require)])
    for routes in (admin_tenant_routes, admin_key_routes, admin_usage_routes):
        router.include_router(routes(gateway))
    return router
