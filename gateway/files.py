"""``/v1/files``: upload, list, look at, download and delete files."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import quote

import structlog
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from headway.gateway.blobs import Blobs
from headway.gateway.errors import NO_RETRY, ApiError, shutting_down
from headway.gateway.file_requests import keep_seconds_of, name_of, purpose_of
from headway.gateway.gateway import Gateway
from headway.gateway.json_response import json_response
from headway.gateway.listing import limit_of, list_object, order_of, unknown_cursor
from headway.gateway.producer import idempotency_key_of
from headway.gateway.tenancy import tenant_of
from headway.gateway.upload import Upload, storage_failed
from headway.queueing.batch_store import FILES_KEPT, BatchStore
from headway.queueing.stored_file import StoredFile

_log = structlog.stdlib.get_logger("headway.gateway")

_FORM: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "additionalProperties": False,
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch", "user_data"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {"type": "integer"},
                    },
                }
            }
        },
    }
}


def file_routes(gateway: Gateway, blobs: Blobs) -> APIRouter:
    """The files endpoints."""
    router = APIRouter(dependencies=[Depends(gateway.callers.identify)])

    @router.post("/v1/files", openapi_extra=_FORM)
    async def create(request: Request) -> Response:
        """Keep a file."""
        return json_response(file_object(await store_upload(gateway, blobs, request)))

    @router.get("/v1/files")
    async def listing(request: Request) -> Response:
        """The tenant's files."""
        return json_response(await list_files(gateway, request))

    @router.get("/v1/files/{file_id}")
    async def retrieve(request: Request, file_id: str) -> Response:
        """What is known of a file."""
        return json_response(file_object(await own_file(gateway, request, file_id)))

    @router.get("/v1/files/{file_id}/content")
    async def content(request: Request, file_id: str) -> Response:
        """The file itself."""
        file = await own_file(gateway, request, file_id)
        return StreamingResponse(
            await _begun(blobs, file),
            media_type="application/octet-stream",
            headers={
                "content-length": str(file.size_bytes),
                "content-disposition": f"attachment; filename*=UTF-8''{quote(file.name)}",
                "x-content-type-options": "nosniff",
                "cache-control": "no-store",
            },
        )

    @router.delete("/v1/files/{file_id}")
    async def delete(request: Request, file_id: str) -> Response:
        """Forget a file and its bytes."""
        file = await own_file(gateway, request, file_id)
        try:
            await blobs.remove(file.path)
        except OSError as error:
            _log.error("file could not be removed", file=file_id, error=repr(error))
            raise storage_failed() from None
        await gateway.queue.batch_store.remove_file(file)
        return json_response({"id": file_id, "object": "file", "deleted": True})

    return router


async def store_upload(gateway: Gateway, blobs: Blobs, request: Request) -> StoredFile:
    """The file of a request's form, kept. Raises ApiError 400, 408, 413, 415, 429, 503."""
    if gateway.stopping.is_draining:
        raise shutting_down()
    store, tenant = gateway.queue.batch_store, tenant_of(request)
    if await store.count_files(tenant) >= FILES_KEPT:
        raise ApiError(
            429,
            f"as many files are kept as may ({FILES_KEPT}): delete some with DELETE /v1/files/ID",
            code="too_many_files",
            kind="requests",
            headers=NO_RETRY,
        )
    file_id = f"file-{secrets.token_hex(12)}"
    key = idempotency_key_of(request.headers)
    most_bytes = gateway.settings.max_file_bytes
    upload = Upload(blobs, f"files/{file_id}", most_bytes, digests=key is not None)
    form = await upload.receive(request, gateway.settings.upload_seconds)
    try:
        now_ms = await store.now_ms()
        keep_seconds = keep_seconds_of(form.fields) or gateway.settings.file_keep_seconds
        file = StoredFile(
            file_id=file_id,
            tenant=tenant,
            name=name_of(form.file_name or ""),
            purpose=purpose_of(form.fields),
            size_bytes=upload.size_bytes,
            created_ms=now_ms,
            expires_ms=now_ms + int(keep_seconds * 1000),
            path=f"files/{file_id}",
        )
        await store.add_file(file)
        if key is not None:
            digest = upload.digest("file", file.name, sorted(form.fields.items()))
            earlier = await _made_before(store, file, key, digest)
            if earlier is not None:
                await upload.abandon()
                return earlier
    except BaseException:
        await upload.abandon()
        raise
    _log.info("file kept", file=file_id, tenant=tenant, bytes=file.size_bytes, purpose=file.purpose)
    return file


async def _made_before(store: BatchStore, file: StoredFile, key: str, digest: str) -> StoredFile | None:
    """The file that this idempotency key has made before, instead of the one that was just kept.

    That one is a record first and has the key then: so whatever a key stands for is there, until somebody
    deletes it. Raises IdempotencyConflictError.
    """
    try:
        made = await store.once.make(file.tenant, key, digest, file.file_id)
    except BaseException:
        await store.remove_file(file)
        raise
    if made == file.file_id:
        return None
    earlier = await store.file(made)
    if earlier is None:  # it was deleted: the key stands for the new one
        await store.once.replace(file.tenant, key, digest, file.file_id)
        return None
    await store.remove_file(file)
    return earlier


async def list_files(gateway: Gateway, request: Request) -> dict[str, object]:
    """A page of the tenant's files; raises ApiError 400."""
    query = request.query_params
    limit, order = limit_of(query, default=10_000, most=10_000), order_of(query)
    after, purpose = query.get("after"), query.get("purpose")
    store, tenant = gateway.queue.batch_store, tenant_of(request)
    found: list[StoredFile] = []
    while True:  # those that are filtered out, or have expired, count for nothing
        page = await store.file_page(tenant, after, min(limit, 1000), order)
        if page is None:
            raise unknown_cursor(after or "")
        files = await store.files(page.ids)
        found += [file for file in files if purpose is None or file.purpose == purpose]
        if len(found) > limit or not page.has_more:
            break
        after = page.ids[-1]
    shown = [file_object(file) for file in found[:limit]]
    return list_object(shown, has_more=len(found) > limit)


async def own_file(gateway: Gateway, request: Request, file_id: str) -> StoredFile:
    """A file of the request's tenant; raises ApiError 404 for any other."""
    file = await gateway.queue.batch_store.file(file_id)
    if file is None or file.tenant != tenant_of(request):
        raise ApiError(
            404,
            f"No such File object: {file_id[:80]} (deleted, expired, or never here)",
            code="file_not_found",
            param="id",
            headers=NO_RETRY,
        )
    return file


def file_object(file: StoredFile) -> dict[str, object]:
    """OpenAI's file."""
    return {
        "id": file.file_id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": file.created_ms // 1000,
        "expires_at": file.expires_ms // 1000,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


async def _begun(blobs: Blobs, file: StoredFile) -> AsyncIterator[bytes]:
    """The file's pieces, the first of them read already: so a file that is away is an error, not half a body.

    Raises ApiError 503.
    """
    pieces = blobs.read(file.path)
    try:
        first = await anext(pieces, b"")
    except OSError as error:
        _log.error("file cannot be read", file=file.file_id, path=file.path, error=repr(error))
        raise storage_failed() from None

    async def all_pieces() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    return all_pieces()
