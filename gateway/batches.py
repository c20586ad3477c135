"""``/v1/batches``: post a file of requests, look how far they are, cancel them.

The gateway only writes down what is asked; the batch service (``headway batch worker``) does it.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from typing import Final

import orjson
import structlog
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from headway.gateway.batch_objects import batch_object
from headway.gateway.batch_requests import BatchRequest, parse_batch
from headway.gateway.errors import NO_RETRY, ApiError, invalid_request, shutting_down
from headway.gateway.gateway import Gateway
from headway.gateway.json_body import read_json_object
from headway.gateway.json_response import json_response
from headway.gateway.listing import limit_of, list_object, unknown_cursor
from headway.gateway.producer import idempotency_key_of
from headway.gateway.schema import json_body_of
from headway.gateway.tenancy import tenant_of
from headway.queueing.batch import MAX_INPUT_BYTES, MAX_LINES, Batch, NewBatch
from headway.queueing.batch_store import BATCHES_KEPT
from headway.queueing.stored_file import StoredFile

INPUT_SECONDS: Final = 600
"""A batch whose window is over still reads its input, to name every line that has no answer."""

_log = structlog.stdlib.get_logger("headway.gateway")


def batch_routes(gateway: Gateway) -> APIRouter:
    """The batches endpoints."""
    router = APIRouter(dependencies=[Depends(gateway.callers.identify)])
    store = gateway.queue.batch_store

    @router.post("/v1/batches", openapi_extra=json_body_of(BatchRequest))
    async def create(request: Request) -> Response:
        """Accept a batch."""
        if gateway.stopping.is_draining:
            raise shutting_down()
        asked = parse_batch(await read_json_object(request, gateway.settings))
        key = idempotency_key_of(request.headers)
        return json_response(batch_object(await accept(gateway, asked, tenant_of(request), key)))

    @router.get("/v1/batches")
    async def listing(request: Request) -> Response:
        """The tenant's batches, the newest first."""
        limit = limit_of(request.query_params, default=20, most=100)
        after = request.query_params.get("after")
        page = await store.batch_page(tenant_of(request), after, limit)
        if page is None:
            raise unknown_cursor(after or "")
        shown = [batch_object(batch) for batch in await store.batches(page.ids)]
        return json_response(list_object(shown, has_more=page.has_more))

    @router.get("/v1/batches/{batch_id}")
    async def retrieve(request: Request, batch_id: str) -> Response:
        """How far a batch is."""
        return json_response(batch_object(await own_batch(gateway, request, batch_id)))

    @router.post("/v1/batches/{batch_id}/cancel")
    async def cancel(request: Request, batch_id: str) -> Response:
        """Ask for the end of a batch; what is done by then is kept. One that has ended stays as it is."""
        batch = await own_batch(gateway, request, batch_id)
        if batch.outcome is None:
            await store.cancel_batch(batch_id)
            _log.info("batch is to end", batch=batch_id, tenant=batch.asked.tenant)
        return json_response(batch_object(await own_batch(gateway, request, batch_id)))

    return router


async def accept(gateway: Gateway, asked: BatchRequest, tenant: str, key: str | None) -> Batch:
    """The batch that this idempotency key has made, else a new one; raises ApiError 400, 429.

    Raises IdempotencyConflictError for a key that was used with another request.
    """
    store, batch_id = gateway.queue.batch_store, f"batch_{secrets.token_hex(12)}"
    if key is None:
        return await _add(gateway, asked, await input_of(gateway, asked, tenant), batch_id)
    digest = sha256(b"batch" + orjson.dumps(asked.model_dump(), option=orjson.OPT_SORT_KEYS)).hexdigest()
    made = await store.once.made(tenant, key, digest)
    if made is not None and (batch := await store.batch(made)) is not None:
        return batch
    file = await input_of(gateway, asked, tenant)
    # The key comes before the record: of two that ask at once both write the same batch, which is one.
    return await _add(gateway, asked, file, await store.once.make(tenant, key, digest, batch_id))


async def _add(gateway: Gateway, asked: BatchRequest, file: StoredFile, batch_id: str) -> Batch:
    store = gateway.queue.batch_store
    now_ms = await store.now_ms()
    keep = asked.output_expires_after
    new = NewBatch(
        batch_id=batch_id,
        tenant=file.tenant,
        input_file_id=file.file_id,
        endpoint=asked.endpoint,
        window=asked.completion_window,
        created_ms=now_ms,
        expires_ms=now_ms + asked.window_seconds * 1000,
        metadata=asked.metadata or {},
        output_keep_seconds=None if keep is None else float(keep.seconds),
    )
    await store.add_batch(new)
    _log.info("batch accepted", batch=batch_id, tenant=file.tenant, file=file.file_id, bytes=file.size_bytes)
    return await store.batch(batch_id) or Batch(new)


async def input_of(gateway: Gateway, asked: BatchRequest, tenant: str) -> StoredFile:
    """The file of a batch that may be accepted; raises ApiError 400, 429."""
    store = gateway.queue.batch_store
    if await store.count_batches(tenant) >= BATCHES_KEPT:
        raise ApiError(
            429,
            f"as many batches are kept as may ({BATCHES_KEPT}): put more lines into each, up to {MAX_LINES}; "
            "one that has ended is forgotten 30 days later",
            code="too_many_batches",
            kind="requests",
            headers=NO_RETRY,
        )
    file = await store.file(asked.input_file_id)
    if file is None or file.tenant != tenant:
        raise invalid_request(
            f"No such File object: {asked.input_file_id[:80]} (deleted, expired, or never here)",
            param="input_file_id",
            code="file_not_found",
        )
    if file.purpose != "batch":
        raise invalid_request(
            f"the file's purpose is {file.purpose!r}: upload it with purpose=batch", param="input_file_id"
        )
    if file.size_bytes > MAX_INPUT_BYTES:
        raise invalid_request(
            f"a batch's file may have {MAX_INPUT_BYTES} bytes, this one has {file.size_bytes}: split it",
            param="input_file_id",
            code="file_too_large",
        )
    left_seconds = (file.expires_ms - await store.now_ms()) // 1000
    if left_seconds < asked.window_seconds + INPUT_SECONDS:
        raise _expires_too_soon(asked, left_seconds)
    return file


def _expires_too_soon(asked: BatchRequest, left_seconds: int) -> ApiError:
    hours = max(0, left_seconds - INPUT_SECONDS) // 3600
    shorter = f"ask for a completion_window of {hours}h, or " if hours else ""
    return invalid_request(
        f"the input file expires in {left_seconds} seconds, and the batch may read it for its whole "
        f"completion_window and {INPUT_SECONDS} seconds more: {shorter}upload it again with "
        f"expires_after[seconds] of {asked.window_seconds + 3600} or more, or without expires_after",
        param="input_file_id",
        code="file_expires_too_soon",
    )


async def own_batch(gateway: Gateway, request: Request, batch_id: str) -> Batch:
    """A batch of the request's tenant; raises ApiError 404 for any other."""
    batch = await gateway.queue.batch_store.batch(batch_id)
    if batch is None or batch.asked.tenant != tenant_of(request):
        raise ApiError(
            404, f"No batch found with id '{batch_id[:80]}'.", code="batch_not_found", headers=NO_RETRY
        )
    return batch
