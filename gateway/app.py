"""The ASGI app: routes, error shapes and life span around one Gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match

from headway.gateway.admin import admin_routes
from headway.gateway.admins import Admins
from headway.gateway.batches import batch_routes
from headway.gateway.blobs import Blobs
from headway.gateway.callers import Callers
from headway.gateway.chat import chat_routes
from headway.gateway.completions import completion_routes
from headway.gateway.console_api import console_api
from headway.gateway.console_pages import console_pages
from headway.gateway.constraint_checks import ConstraintChecks, Refusal
from headway.gateway.cors import cors_options
from headway.gateway.errands import Errands
from headway.gateway.errors import ApiError, from_queueing
from headway.gateway.files import file_routes
from headway.gateway.gateway import Gateway
from headway.gateway.health import health_routes
from headway.gateway.index import index_routes
from headway.gateway.jobs import job_routes
from headway.gateway.json_response import error_response
from headway.gateway.metrics import Metrics
from headway.gateway.model_directory import ModelDirectory
from headway.gateway.models import model_routes
from headway.gateway.open_requests import OpenRequests
from headway.gateway.openapi import describe
from headway.gateway.request_log import RequestLog
from headway.gateway.request_record import record_of
from headway.gateway.responses import response_routes
from headway.gateway.settings import GatewaySettings
from headway.gateway.tokens import token_routes
from headway.gateway.tracing import RequestTraces
from headway.gateway.unanswered import Unanswered
from headway.queueing.admission import Admission
from headway.queueing.client import Client
from headway.queueing.errors import QueueingError
from headway.queueing.protocol import Queue


def create_app(
    queue: Queue | Client,
    settings: GatewaySettings,
    *,
    registry: CollectorRegistry,
    clock: Callable[[], float],
    wall_clock: Callable[[], float],
    traces: RequestTraces | None = None,
    blobs: Blobs | None = None,
    constraint_refusal: Refusal | None = None,
) -> FastAPI:
    """The gateway as an ASGI app; ``app.state.gateway`` is its Gateway.

    ``clock`` is monotonic, ``wall_clock`` gives seconds since the epoch. ``blobs`` is where files lie:
    without it there are no files and no batches. ``constraint_refusal``: why no answer can be held to a
    constraint; without it the worker says so. The caller owns the queue's connections. To stop without
    cutting anyone off: ``gateway.stopping.drain()``, then ``.end()`` when the time for open streams is over,
    then the server's own shutdown.
    """
    queue = queue.queue if isinstance(queue, Client) else queue
    errands = Errands()
    admission = Admission(queue, clock=wall_clock)
    gateway = Gateway(
        queue=queue,
        unanswered=Unanswered(queue, admission, errands, clock=clock, wall_clock=wall_clock),
        callers=Callers(queue, OpenRequests(settings.max_requests_per_tenant)),
        admins=Admins(queue, settings.admin_key_digest),
        settings=settings,
        metrics=Metrics(registry, max_tenants=settings.metric_tenants, clock=clock, wall_clock=wall_clock),
        models=ModelDirectory(queue, ttl_seconds=settings.models_ttl_seconds, clock=clock),
        clock=clock,
        wall_clock=wall_clock,
        errands=errands,
        has_files=blobs is not None,
        constraints=ConstraintChecks(constraint_refusal),
        traces=traces,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        await gateway.close()

    app = FastAPI(
        title="Headway",
        version=settings.version,
        lifespan=lifespan,
        # The documentation pages load their scripts from elsewhere; /openapi.json needs nothing.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.gateway = gateway
    for routes in (
        chat_routes,
        completion_routes,
        response_routes,
        token_routes,
        model_routes,
        job_routes,
        admin_routes,
        health_routes,
        index_routes,
    ):
        app.include_router(routes(gateway))
    app.include_router(console_api(gateway))
    app.include_router(console_pages())
    if blobs is not None:
        app.include_router(file_routes(gateway, blobs))
        app.include_router(batch_routes(gateway))
    describe(app)
    _speak_openai(app)
    if settings.cors_origins:
        app.add_middleware(CORSMiddleware, **cors_options(settings.cors_origins))
    app.add_middleware(RequestLog, gateway=gateway)
    return app


def _speak_openai(app: FastAPI) -> None:
    """Give every error OpenAI's shape."""

    async def refused(request: Request, error: Exception) -> Response:
        told = _told(request, error)
        record_of(request.scope).note(error=told.code)
        return error_response(told)

    for kind in (ApiError, QueueingError, HTTPException):
        app.add_exception_handler(kind, refused)


def _told(request: Request, error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case QueueingError():
            return from_queueing(error)
        case HTTPException(status_code=404):
            return ApiError(
                404,
                f"there is no {request.method} {request.url.path[:200]} here; see GET /",
                code="not_found",
            )
        case HTTPException(status_code=405):
            allowed = ", ".join(_methods_of(request))
            message = f"{request.method} is not possible at {request.url.path[:200]}, only {allowed}"
            return ApiError(405, message, code="method_not_allowed", headers={"allow": allowed})
        case HTTPException():
            return ApiError(error.status_code, str(error.detail), code="http_error", headers=error.headers)
        case _:
            raise error


def _methods_of(request: Request) -> list[str]:
    """What may be done at this path: its methods are routes of their own, and the framework names one's."""
    routes = [
        route for route in _each(request.app.routes) if route.matches(request.scope)[0] is not Match.NONE
    ]
    return sorted({method for route in routes for method in getattr(route, "methods", None) or ()})


def _each(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """The routes themselves, also those that newer versions of the framework keep in routers of their own."""
    for route in routes:
        router = getattr(route, "original_router", None)
        yield from (route,) if router is None else _each(router.routes)
