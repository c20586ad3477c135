"""``/console/api``: what the console shows. Names, counts and times only: no prompt and no answer.

It shows all tenants to whoever may look, so it asks for an administrator's key wherever keys are asked for.
"""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Depends
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway.gateway.console_feed import ConsoleFeed
from headway.gateway.console_guard import ConsoleGuard
from headway.gateway.errors import invalid_request
from headway.gateway.event_stream import EventStreamWriter, leave_running, serve
from headway.gateway.gateway import Gateway
from headway.gateway.job_objects import status_object
from headway.gateway.json_response import json_response
from headway.gateway.request_record import record_of
from headway.queueing.backlog import EndedJob
from headway.queueing.events import JobStatus

MOST_JOBS = 500


def console_api(gateway: Gateway) -> APIRouter:
    """The console's endpoints."""
    guard = ConsoleGuard(gateway.callers, gateway.admins)
    router = APIRouter(prefix="/console/api", dependencies=[Depends(guard)], include_in_schema=False)
    feed = ConsoleFeed(gateway.queue, gateway.models, gateway.stopping, gateway.wall_clock)

    @router.get("/live")
    async def live() -> Response:
        """Figures once a second, and each worker's steps as they come."""
        return LiveStream(gateway, feed)

    @router.get("/jobs")
    async def jobs(
        model: str | None = None,
        tenant: str | None = None,
        limit: str = "100",
    ) -> Response:
        """Jobs that wait, run and ended lately, of one model or of all."""
        most = _number_of_jobs(limit)
        fleet = await gateway.models.fleet()
        found: dict[str, list[dict[str, object]]] = {"waiting": [], "running": [], "ended": []}
        for name in fleet.served if model is None else (model,):
            waiting = await gateway.queue.waiting_jobs(name, tenant=tenant, limit=most)
            running = await gateway.queue.running_jobs(name, MOST_JOBS if tenant else most)
            ended = await gateway.queue.recent_jobs(name, MOST_JOBS if tenant else most)
            found["waiting"] += [_row(job) for job in waiting]
            found["running"] += [_row(job) for job in running if tenant in {None, job.tenant}]
            found["ended"] += [_ended_row(job) for job in ended if tenant in {None, job.tenant}]
        now = round(gateway.wall_clock() * 1000)
        return json_response({"at_ms": now} | {stage: rows[:most] for stage, rows in found.items()})

    @router.get("/jobs/{job_id}")
    async def job(job_id: str) -> Response:
        """One job's record with all its claims, for its timeline."""
        status = await gateway.queue.status(job_id)
        more: dict[str, object] = {
            "at_ms": round(gateway.wall_clock() * 1000),
            "claimed_ms": status.claimed_ms or None,
            "first_token_ms": status.first_token_ms or None,
            "history": [asdict(claim) for claim in status.history],
            "retry_of": status.retry_of,
        }
        return json_response(status_object(status) | more)

    return router


class LiveStream(Response):
    """Watches until the console leaves or the gateway stops."""

    def __init__(self, gateway: Gateway, feed: ConsoleFeed) -> None:
        super().__init__()
        self._gateway = gateway
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Feed one console."""
        writer = EventStreamWriter(self._gateway, send, error_event="trouble")
        with self._feed.watching() as watcher:
            try:
                work = writer.pump(watcher, dict[str, str])
                await serve(
                    self._gateway, work, writer, receive, abandon=leave_running, job_ids=tuple[str, ...]
                )
            finally:
                record_of(scope).note(error=writer.failure.code if writer.failure else None)


def _number_of_jobs(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:9]) <= MOST_JOBS:
        raise invalid_request(f"limit is a number of jobs from 1 to {MOST_JOBS}", param="limit")
    return int(text)


def _row(job: JobStatus) -> dict[str, object]:
    return {
        "id": job.job_id,
        "tenant": job.tenant,
        "class": job.priority.value,
        "tokens": job.committed_tokens,
        "attempts": job.attempts,
        "worker": job.worker,
        "created_ms": job.created_ms,
        "started_ms": job.started_ms or None,
        "deadline_ms": job.deadline_ms or None,
    }


def _ended_row(job: EndedJob) -> dict[str, object]:
    return {
        "id": job.job_id,
        "tenant": job.tenant,
        "class": job.priority.value,
        "tokens": job.completion_tokens,
        "reason": job.reason.value,
        "created_ms": job.created_ms,
        "ended_ms": job.ended_ms,
    }
