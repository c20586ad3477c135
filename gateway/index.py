"""``GET /``: what is here, for programs and for whoever looks with curl; people find ``/console/``."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from headway.gateway.gateway import Gateway
from headway.gateway.json_response import json_response

_FILES: Final = {
    "file_upload": "POST /v1/files",
    "files": "GET /v1/files",
    "file": "GET /v1/files/{file_id}",
    "file_content": "GET /v1/files/{file_id}/content",
    "file_delete": "DELETE /v1/files/{file_id}",
    "batch_create": "POST /v1/batches",
    "batches": "GET /v1/batches",
    "batch": "GET /v1/batches/{batch_id}",
    "batch_cancel": "POST /v1/batches/{batch_id}/cancel",
}


def index_routes(gateway: Gateway) -> APIRouter:
    """The index."""
    router = APIRouter()

    @router.get("/")
    async def index() -> Response:
        """A short list of the endpoints, and whether anybody may use them (null: the queue is away)."""
        endpoints = {
            "chat": "POST /v1/chat/completions",
            "completions": "POST /v1/completions",
            "responses": "POST /v1/responses",
            "response": "GET /v1/responses/{response_id}",
            "response_input": "GET /v1/responses/{response_id}/input_items",
            "response_cancel": "POST /v1/responses/{response_id}/cancel",
            "response_delete": "DELETE /v1/responses/{response_id}",
            "tokenize": "POST /tokenize",
            "detokenize": "POST /detokenize",
            "models": "GET /v1/models",
            "model": "GET /v1/models/{model}",
            "jobs": "POST /v1/jobs",
            "job": "GET /v1/jobs/{job_id}",
            "job_stream": "GET /v1/jobs/{job_id}/stream",
            "job_result": "GET /v1/jobs/{job_id}/result",
            "job_cancel": "POST /v1/jobs/{job_id}/cancel",
            "admin_tenants": "GET /admin/tenants",
            "admin_tenant_create": "POST /admin/tenants",
            "admin_tenant": "GET /admin/tenants/{tenant}",
            "admin_tenant_change": "PATCH /admin/tenants/{tenant}",
            "admin_tenant_replace": "PUT /admin/tenants/{tenant}",
            "admin_tenant_remove": "DELETE /admin/tenants/{tenant}",
            "admin_keys": "GET /admin/keys",
            "admin_key_create": "POST /admin/keys",
            "admin_key_revoke": "DELETE /admin/keys/{key_id}",
            "admin_usage": "GET /admin/usage",
            "alive": "GET /livez",
            "health": "GET /healthz",
            "ready": "GET /readyz",
            "metrics": "GET /metrics",
            "schema": "GET /openapi.json",
        }
        if gateway.has_files:
            endpoints |= _FILES
        about = {"name": "headway", "version": gateway.settings.version, "console": "/console/"}
        return json_response(about | {"open_mode": await gateway.callers.is_open(), "endpoints": endpoints})

    return router
