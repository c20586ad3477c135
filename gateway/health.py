"""``/healthz``, ``/readyz`` and ``/metrics``: what machines ask, each within a bounded time."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from headway.gateway.errors import invalid_request
from headway.gateway.gateway import Gateway
from headway.gateway.json_response import json_response
from headway.gateway.model_directory import Fleet
from headway.queueing.errors import QueueingError

MOST_MODELS: Final = 8
"""Whose lanes a probe tries to write in when no worker has to be there."""


def health_routes(gateway: Gateway) -> APIRouter:
    """The probes (some load balancers ask with HEAD) and the scrape."""
    router = APIRouter()

    @router.head("/livez", include_in_schema=False)
    @router.get("/livez")
    async def livez() -> Response:
        """200 while this process turns, whatever becomes of queue and workers: for who restarts it."""
        return json_response({"status": "ok"})

    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz")
    async def healthz() -> Response:
        """200 unless a live worker's engine is hung: it has work and completes no step.

        A queue that cannot be reached is not this process's illness, and restarting it would cure nothing.
        """
        fleet = await probe(gateway)
        hung = [] if fleet is None else hung_workers(fleet, gateway.settings.hung_after_seconds)
        answer = {
            "status": "hung" if hung else "ok",
            "queue": "unreachable" if fleet is None else "ok",
            "hung_workers": hung,
        }
        return json_response(answer, status=503 if hung else 200)

    @router.head("/readyz", include_in_schema=False)
    @router.get("/readyz")
    async def readyz(request: Request) -> Response:
        """200 when a job posted now would be worked on now.

        ``?workers=0``: when it would be accepted, though nobody is there yet. Where a balancer asks this,
        workers may scale to zero: the gateways go on accepting the job that wakes them.
        """
        needed = _needed_workers(request.query_params.get("workers", "1"))
        fleet = await probe(gateway)
        models = [] if fleet is None else [card.model for card in fleet.workers if card.state == "ready"]
        accepting = models if needed or fleet is None else [*fleet.served[:MOST_MODELS]]
        reason = _unready(gateway, fleet, len(models), needed) or await _unwritable(gateway, accepting)
        answer = {"ready": reason is None, "reason": reason, "ready_workers": len(models)}
        return json_response(answer, status=200 if reason is None else 503)

    @router.get("/metrics")
    async def metrics() -> Response:
        """All metrics of this gateway, and the depth of the queue as it is now."""
        try:
            async with asyncio.timeout(gateway.settings.probe_seconds):
                await gateway.metrics.queue.measure(gateway.queue, gateway.models)
            gateway.metrics.queue.up.set(1)
        except (QueueingError, TimeoutError):
            gateway.metrics.queue.up.set(0)
        return Response(generate_latest(gateway.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return router


async def probe(gateway: Gateway) -> Fleet | None:
    """The fleet as it is now, or None if the queue does not answer within ``probe_seconds``."""
    try:
        async with asyncio.timeout(gateway.settings.probe_seconds):
            return await gateway.models.fleet(fresh=True)
    except (QueueingError, TimeoutError):
        return None


def hung_workers(fleet: Fleet, after_seconds: float) -> list[dict[str, object]]:
    """The live workers whose engine has completed no step for that long while it had work."""
    return [
        {"id": card.worker_id, "model": card.model, "step_age_seconds": round(card.step_age_seconds, 1)}
        for card in fleet.workers
        if card.step_age_seconds > after_seconds
    ]


def _needed_workers(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise invalid_request("workers is how many must be ready: a number from 0 on", param="workers")
    return int(text)


def _unready(gateway: Gateway, fleet: Fleet | None, ready: int, needed: int) -> str | None:
    if gateway.stopping.is_draining:
        return "this gateway is shutting down"
    if fleet is None:
        return "the queue does not answer"
    if ready < needed:
        found = "no worker is" if not ready else f"only {ready} of {needed} workers are"
        return f"{found} ready ({len(fleet.workers)} known)"
    return None


async def _unwritable(gateway: Gateway, models: list[str]) -> str | None:
    """Why the queue would refuse a job of one of these models now."""
    try:
        async with asyncio.timeout(gateway.settings.probe_seconds):
            for model in sorted(set(models)):
                await gateway.queue.check_writes(model)
    except QueueingError as error:
        return f"the queue takes no jobs: {error}"
    except TimeoutError:
        return "the queue does not answer"
    return None
