"""``/admin/keys``: API keys. A key is shown once, when it is made; only its digest is kept."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from headway.gateway.errors import NO_RETRY, ApiError, invalid_request
from headway.gateway.gateway import Gateway
from headway.gateway.json_body import read_json_object
from headway.gateway.json_response import json_response
from headway.queueing.errors import InvalidTenantError
from headway.queueing.tenant_book import ApiKey, TenantBook, id_of, new_key

MAX_NAME_CHARS: Final = 200


def admin_key_routes(gateway: Gateway) -> APIRouter:
    """The keys' endpoints."""
    router = APIRouter()

    @router.get("/admin/keys")
    async def list_keys() -> Response:
        """Every key's id, tenant, name and age, the oldest first; never a key itself."""
        book = await gateway.queue.tenant_store.book()
        keys = sorted(book.keys.values(), key=lambda each: (each.created_ms, each.id))
        shown = [_key_object(key) for key in keys]
        shown += [
            {"id": id_of(digest), "object": "key", "unreadable": wrong}
            for digest, wrong in sorted(book.broken_keys.items())
        ]
        return json_response({"object": "list", "data": shown})

    @router.post("/admin/keys", status_code=201)
    async def create_key(request: Request) -> Response:
        """Make a key: ``{"tenant": …, "name": …, "admin": false}``. The first one closes the service."""
        tenant, name, is_admin = _asked(await read_json_object(request, gateway.settings))
        secret = new_key()
        try:
            key = await gateway.queue.tenant_store.add_key(tenant, name, secret, is_admin=is_admin)
        except InvalidTenantError as error:
            raise invalid_request(str(error), param="tenant") from None
        return json_response(_key_object(key) | {"key": secret}, status=201)

    @router.delete("/admin/keys/{key_id}")
    async def revoke_key(request: Request, key_id: str) -> Response:
        """Refuse a key from now on; the last one only with ``?open=true``, since that opens the service."""
        opens = request.query_params.get("open", "false")
        if opens not in {"true", "false"}:
            raise invalid_request("'open' is true or false", param="open")
        book = await gateway.queue.tenant_store.book()
        digest = _digest_by_id(book, key_id)
        is_last = len(book.keys) + len(book.broken_keys) == 1
        if is_last and opens != "true":
            raise ApiError(
                409,
                "this is the last key: without it the service is open to everybody; make another one first, "
                "or add ?open=true",
                code="last_key",
                param="open",
                headers=NO_RETRY,
            )
        await gateway.queue.tenant_store.revoke_key(digest)
        return json_response({"id": key_id, "object": "key", "deleted": True})

    return router


def _asked(body: dict[str, object]) -> tuple[str, str, bool]:
    """Tenant, name, and whether it is an administrator's; raises ApiError 400."""
    tenant, name, is_admin = body.pop("tenant", None), body.pop("name", ""), body.pop("admin", False)
    if body:
        param = next(iter(body))[:100]
        raise invalid_request(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    if tenant is None:
        raise invalid_request(
            "give the tenant that the key stands for", param="tenant", code="missing_required_parameter"
        )
    if not isinstance(tenant, str):
        raise invalid_request("'tenant' is a text", param="tenant", code="invalid_type")
    if not isinstance(name, str) or len(name) > MAX_NAME_CHARS:
        raise invalid_request(f"'name' is a text of at most {MAX_NAME_CHARS} characters", param="name")
    if not isinstance(is_admin, bool):
        raise invalid_request("'admin' is true or false", param="admin", code="invalid_type")
    return tenant, name, is_admin


def _digest_by_id(book: TenantBook, key_id: str) -> str:
    """The digest of the one key with this id; raises ApiError 404."""
    found = [digest for digest in (*book.keys, *book.broken_keys) if id_of(digest) == key_id]
    if len(found) != 1:
        raise ApiError(
            404,
            f"there is no key {key_id[:80]!r}; GET /admin/keys lists them by id",
            code="key_not_found",
            param="key_id",
            headers=NO_RETRY,
        )
    return found[0]


def _key_object(key: ApiKey) -> dict[str, object]:
    return {
        "id": key.id,
        "object": "key",
        "tenant": key.tenant,
        "name": key.name,
        "admin": key.is_admin,
        "created_ms": key.created_ms,
    }
