"""``/v1/jobs``: post a job as it is, look at it, follow it, fetch its answer, cancel it."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from headway.gateway.callers import caller_of
from headway.gateway.gateway import Gateway
from headway.gateway.intake import check_admission
from headway.gateway.job_objects import links, result_object, status_object
from headway.gateway.job_stream import open_job_stream
from headway.gateway.json_body import read_json_object
from headway.gateway.json_response import json_response
from headway.gateway.producer import producer_terms
from headway.gateway.quota_headers import quota_headers
from headway.gateway.request_record import record_of
from headway.gateway.schema import json_body_of
from headway.gateway.validation import refusal
from headway.queueing.events import JobState
from headway.queueing.messages import Job
from headway.queueing.protocol import Cancelled

_AFTER_CANCEL = {
    Cancelled.QUEUED: "cancelled",
    Cancelled.RUNNING: "cancelling",
    Cancelled.FINISHED: "finished",
}


def job_routes(gateway: Gateway) -> APIRouter:
    """The jobs endpoints."""
    router = APIRouter(dependencies=[Depends(gateway.callers.identify)])

    @router.post("/v1/jobs", status_code=202, openapi_extra=json_body_of(Job))
    async def submit(request: Request) -> Response:
        """Accept a job, say where to follow it; a repeat under the same idempotency key names the first."""
        return await submit_job(gateway, request)

    @router.get("/v1/jobs/{job_id}")
    async def status(request: Request, job_id: str) -> Response:
        """The job's record, and its answer once it has one."""
        record = status_object(await gateway.callers.own_job(request, job_id))
        result = await gateway.queue.result(job_id)
        return json_response(record | {"result": None if result is None else result_object(result)})

    @router.get("/v1/jobs/{job_id}/stream")
    async def stream(request: Request, job_id: str) -> Response:
        """The job's events as they come, after ``Last-Event-ID`` or ``?after=``, else from the start."""
        await gateway.callers.check_own(request, job_id)
        return await open_job_stream(gateway, job_id, request.headers, request.query_params)

    @router.get("/v1/jobs/{job_id}/result")
    async def result(request: Request, job_id: str) -> Response:
        """The answer; 202 with the job's record while there is none yet."""
        await gateway.callers.check_own(request, job_id)
        answer = await gateway.queue.result(job_id)
        if answer is not None:
            return json_response(result_object(answer))
        record = status_object(await gateway.queue.status(job_id))
        return json_response(record, status=202, headers={"retry-after": "1"})

    @router.post("/v1/jobs/{job_id}/cancel")
    @router.delete("/v1/jobs/{job_id}")
    async def cancel(request: Request, job_id: str) -> Response:
        """End a job: at once if it waits, within a step or two if it runs."""
        await gateway.callers.check_own(request, job_id)
        met = await gateway.queue.cancel(job_id, "cancelled over HTTP")
        record_of(request.scope).note(jobs=(job_id,))
        return json_response({"id": job_id, "object": "job", "status": _AFTER_CANCEL[met]} | links(job_id))

    return router


async def submit_job(gateway: Gateway, request: Request) -> Response:
    """Post the body's job; 202 with its id and where to follow it."""
    body = await read_json_object(request, gateway.settings)
    job = parse_job(body, request.headers, caller_of(request))
    await check_admission(gateway, request, (job,))
    submission = await gateway.unanswered.submit(job)
    record_of(request.scope).note(jobs=(submission.job_id,))
    state = JobState.QUEUED
    if submission.created:
        tenant = gateway.metrics.tenant(job.tenant)
        gateway.metrics.accepted.labels(job.model, tenant, job.priority.value).inc()
    else:
        gateway.metrics.repeated.labels(job.model).inc()
        state = (await gateway.queue.status(submission.job_id)).state
    answer = {"id": submission.job_id, "object": "job", "status": state.value, "created": submission.created}
    at = links(submission.job_id)
    headers = {"location": at["url"]} | quota_headers(submission.standing)
    return json_response(answer | at, status=202, headers=headers)


def parse_job(body: dict[str, object], headers: Headers, caller: str | None = None) -> Job:
    """The job of a body, its terms completed from the headers; raises ApiError 400."""
    try:
        return Job.model_validate(body | producer_terms(headers, body, caller))
    except ValidationError as error:
        raise refusal(error) from None
