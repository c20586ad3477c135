"""``/v1/responses``: OpenAI's responses, each of them a job in other words."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from headway.gateway.errors import invalid_request
from headway.gateway.follow import follow
from headway.gateway.gateway import Gateway
from headway.gateway.intake import check_admission
from headway.gateway.json_body import read_json_object
from headway.gateway.json_response import json_response
from headway.gateway.quota_headers import quota_headers
from headway.gateway.request_record import record_of
from headway.gateway.response_answer import ResponseAnswer
from headway.gateway.response_ids import job_id_of, response_id_of, response_not_found
from headway.gateway.response_input import items_of
from headway.gateway.response_jobs import STORE, input_of, response_job
from headway.gateway.response_objects import ResponseForm, form_of
from headway.gateway.response_requests import ResponseRequest, parse_response_request
from headway.gateway.response_stream import last_read, open_response_stream
from headway.gateway.schema import json_body_of
from headway.queueing.errors import InvalidJobError, UnknownJobError
from headway.queueing.events import JobStatus
from headway.queueing.messages import Job

MOST_ITEMS = 100
"""Input items on one page, as OpenAI documents."""


def response_routes(gateway: Gateway) -> APIRouter:
    """The responses endpoints."""
    router = APIRouter(dependencies=[Depends(gateway.callers.identify)])

    @router.post("/v1/responses", openapi_extra=json_body_of(ResponseRequest))
    async def create(request: Request) -> Response:
        """Answer an input, whole, as a stream, or in the background."""
        body = await read_json_object(request, gateway.settings)
        asked = parse_response_request(body)
        job = await response_job(gateway, request, asked)
        await check_admission(gateway, request, (job,), constraint_param="text.format.schema")
        if asked.background and not asked.stream:
            return await _post(gateway, request, job)
        return ResponseAnswer(gateway, job, streams=bool(asked.stream))

    @router.get("/v1/responses/{response_id}")
    async def retrieve(request: Request, response_id: str) -> Response:
        """The response as it is now, or with ``?stream=true`` its events after ``starting_after``."""
        status, form = await _found(gateway, request, response_id)
        last_read(request.headers, request.query_params)  # one that is none is told, stream or not
        if _streams(request):
            return await open_response_stream(gateway, form, status, request.headers, request.query_params)
        return json_response(form.now(status, await gateway.queue.result(form.job_id)))

    @router.get("/v1/responses/{response_id}/input_items")
    async def input_items(request: Request, response_id: str) -> Response:
        """What the response was asked with, the newest first unless ``?order=asc``."""
        _, form = await _found(gateway, request, response_id)
        return json_response(_page(form, request))

    @router.post("/v1/responses/{response_id}/cancel")
    async def cancel(request: Request, response_id: str) -> Response:
        """End a response; one that has ended stays as it is."""
        status, form = await _found(gateway, request, response_id)
        await gateway.queue.cancel(form.job_id, "cancelled over HTTP")
        record_of(request.scope).note(jobs=(form.job_id,))
        await _wait_for_end(gateway, form.job_id)
        status = await gateway.queue.status(form.job_id)
        return json_response(form.now(status, await gateway.queue.result(form.job_id)))

    @router.delete("/v1/responses/{response_id}")
    async def delete(request: Request, response_id: str) -> Response:
        """Keep nothing of a response that has ended: neither what was asked nor the answer."""
        _, form = await _found(gateway, request, response_id)
        try:
            await gateway.queue.forget(form.job_id)
        except InvalidJobError:
            raise invalid_request(
                f"response {response_id} has not ended yet: POST /v1/responses/{response_id}/cancel first",
                param="response_id",
                code="response_in_progress",
            ) from None
        return json_response({"id": response_id, "object": "response", "deleted": True})

    return router


async def _post(gateway: Gateway, request: Request, job: Job) -> Response:
    """Accept a job that nobody waits for."""
    submission = await gateway.unanswered.submit(job)
    record_of(request.scope).note(jobs=(submission.job_id,))
    if submission.created:
        tenant = gateway.metrics.tenant(job.tenant)
        gateway.metrics.accepted.labels(job.model, tenant, job.priority.value).inc()
    status = await gateway.queue.status(submission.job_id)
    form = form_of(status, job)
    headers = {
        "location": f"/v1/responses/{response_id_of(submission.job_id)}",
        "x-headway-job-id": submission.job_id,
    }
    made = form.now(status, await gateway.queue.result(submission.job_id))
    return json_response(made, headers=headers | quota_headers(submission.standing))


async def _found(gateway: Gateway, request: Request, response_id: str) -> tuple[JobStatus, ResponseForm]:
    """A stored response of the caller's; raises ApiError 404."""
    try:
        job_id = job_id_of(response_id)
        status = await gateway.callers.own_job(request, job_id)
        job = await gateway.queue.job(job_id)
    except (UnknownJobError, InvalidJobError):  # the latter: what a raw producer posted is no response
        raise response_not_found(response_id) from None
    if job.notes.get(STORE) is not True:
        raise response_not_found(response_id)
    record_of(request.scope).note(jobs=(job_id,))
    return status, form_of(status, job)


async def _wait_for_end(gateway: Gateway, job_id: str) -> None:
    """Give the worker the step or two that a cancel takes; one that takes longer is told later."""
    following = follow(gateway, job_id)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(gateway.settings.cancel_seconds):
                while not following.has_ended:
                    await following.next_batch(gateway.settings.read_wait_seconds)
    finally:
        await following.close()


def _streams(request: Request) -> bool:
    """Whether events are asked for; raises ApiError 400."""
    asked = request.query_params.get("stream", "false")
    if asked not in {"true", "false"}:
        raise invalid_request("'stream' is true or false", param="stream")
    return asked == "true"


def _page(form: ResponseForm, request: Request) -> dict[str, object]:
    """A page of input items; raises ApiError 400."""
    query = request.query_params
    order, text, after = query.get("order", "desc"), query.get("limit", "20"), query.get("after")
    if order not in ("asc", "desc"):
        raise invalid_request("'order' is asc or desc", param="order")
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= MOST_ITEMS):
        raise invalid_request(f"'limit' is a number from 1 to {MOST_ITEMS}", param="limit")
    items = items_of(input_of(form.job), form.message_id)
    if order == "desc":
        items.reverse()
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise invalid_request("'after' is the id of an item of this response", param="after")
    first = ids.index(after) + 1 if after is not None else 0
    page = items[first : first + int(text)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": first + len(page) < len(items),
    }
