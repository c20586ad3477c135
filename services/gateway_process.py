"""One gateway process: the ASGI app on uvicorn, and its stop without cutting anyone off.

first signal    no new jobs (503, /readyz turns red); open answers stream on, up to the drain time
then            streams still open end with a frame that says where their job goes on; the process ends
second signal   the same, at once
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from prometheus_client import REGISTRY, disable_created_metrics

from headway import __version__
from headway.gateway.app import create_app
from headway.gateway.gateway import Gateway
from headway.gateway.settings import GatewaySettings as AppSettings
from headway.gateway.tracing import RequestTraces
from headway.queueing.errors import QueueingError
from headway.queueing.messages import Constraint
from headway.queueing.protocol import Queue
from headway.queueing.tenant_book import digest_of
from headway.queueing.tenant_file import TenantFile
from headway.services.batch.place import enter
from headway.services.batch.settings import default_files
from headway.services.batch.storage import GatewayBlobs, Storage
from headway.services.connection import checked_queue, close_queue
from headway.services.errors import NotReachableError, StartError
from headway.services.gateway_limits import GatewayLimits, read_admin_key
from headway.services.http_protocol import bounded_to
from headway.services.listener import open_listener, url_of
from headway.services.logs import configure_logging, get_logger
from headway.services.settings import GatewaySettings, shown
from headway.services.start_tracing import start_tracing
from headway.services.tenant_loops import keep_loop, settle_all_loop
from headway.services.tenants_file import apply_tenants_file, check_tenants_file, watch_tenants_file

if TYPE_CHECKING:
    from headway.services.tracing import Tracing

START_SECONDS = 30.0
"""How long to wait for the queue's server at the start."""
KEEP_ALIVE_SECONDS = 75
"""Longer than the 60 s of common proxies, so that they close idle connections, not we."""
MOST_OPEN_FILES = 65_536
DRAIN_LOOK_SECONDS = 0.05
END_SECONDS = 3
"""What streams get to send their last frame, and errands their last cancel."""

_log = get_logger("gateway")


def run_gateway(settings: GatewaySettings) -> int:
    """Serve until stopped; the exit code. Raises ServiceError for what is expected to go wrong."""
    configure_logging(level=settings.log_level, format=settings.log_format)
    # A second series for each counter, of which nothing here makes use.
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the client library says no types here
    if settings.listen_fd is None:
        listener = open_listener(settings.host, settings.port)
    else:
        listener = socket.socket(fileno=settings.listen_fd)
    _allow_many_connections()
    _log.info("starting", version=__version__, **shown(settings))
    with asyncio.Runner(loop_factory=_fastest_loop()) as runner:
        runner.run(_serve(settings, listener))
    return 0


def _allow_many_connections() -> None:
    """Raise the soft limit of open files, often 1024, as far as the hard one allows: streams live long."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed; None: asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(settings: GatewaySettings, listener: socket.socket) -> None:
    app_settings = _app_settings(settings.limits)
    tracing = start_tracing(settings.otlp_url, service="headway-gateway", instance=url_of(listener))
    file = None if settings.tenants is None else check_tenants_file(settings.tenants)
    queue = await _prepared_queue(settings.redis_url)
    loops: list[asyncio.Task[None]] = []
    try:
        if file is not None:
            await _apply(queue, file)
        loops = _start_loops(queue, settings.tenants)
        app = create_app(
            queue,
            app_settings,
            registry=REGISTRY,
            clock=time.monotonic,
            wall_clock=time.time,
            constraint_refusal=_constraint_refusal,
            traces=None if tracing is None else _http_traces(tracing),
            blobs=await _blobs(settings.files, queue),
        )
        gateway: Gateway = app.state.gateway
        await gateway.callers.announce()
        server = _Server(
            uvicorn.Config(
                app,
                http=bounded_to(settings.limits.max_head_bytes),
                ws="none",
                log_config=None,
                access_log=False,  # the app's own request log says more
                lifespan="on",
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=END_SECONDS,
                server_header=False,
            )
        )
        with _Stop(server, gateway, settings.drain_seconds).on_signals():
            _log.info("listening", url=url_of(listener))
            await server.serve(sockets=[listener])
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await close_queue(queue)
        if tracing is not None:
            await asyncio.to_thread(tracing.close)
    _log.info("stopped")


def _http_traces(tracing: Tracing) -> RequestTraces:
    from headway.services.request_traces import HttpTraces

    return HttpTraces(tracing)


def _constraint_refusal(constraint: Constraint) -> str | None:
    # Imported with the first constraint: the grammar library takes 20 MB.
    from headway.services.constraint import constraint_refusal

    return constraint_refusal(constraint)


def _app_settings(limits: GatewayLimits) -> AppSettings:
    """The app's settings; raises StartError for an administrators' key that is none."""
    admin_key = read_admin_key(limits.admin_key_file)
    return AppSettings(
        version=__version__,
        max_body_bytes=limits.max_body_bytes,
        max_requests_per_tenant=limits.max_connections_per_tenant,
        cors_origins=limits.origins,
        admin_key_digest=digest_of(admin_key) if admin_key else "",
    )


async def _blobs(files: str | None, queue: Queue) -> GatewayBlobs | None:
    """Where files lie; raises ServiceError for a place that was named and cannot be used.

    The queue's name is there before its first file: no other queue takes that for a killed process's.

    A gateway that was told of none, in a container that may write nowhere, serves without files.
    """
    storage = Storage(files or default_files())
    try:
        await asyncio.to_thread(storage.check)
        await enter(queue.batch_store, storage)
    except (StartError, OSError) as error:
        if files is not None:
            raise
        _log.warning("no files and no batches", reason=str(error))
        return None
    return GatewayBlobs(storage)


async def _apply(queue: Queue, file: TenantFile) -> None:
    """Apply tenants.toml; raises StartError: a gateway must not serve without the limits it was given."""
    try:
        await apply_tenants_file(queue, file)
    except QueueingError as error:
        raise StartError(f"the tenants' limits could not be applied: {error}") from None


def _start_loops(queue: Queue, tenants: Path | None) -> list[asyncio.Task[None]]:
    """What goes on beside the requests; none of it can fail, only wait for the queue."""
    loops = [settle_all_loop(queue), keep_loop(queue)]
    if tenants is not None:
        loops.append(watch_tenants_file(queue, tenants))
    return [asyncio.create_task(loop) for loop in loops]


async def _prepared_queue(url: str) -> Queue:
    """The queue once its server answers; raises NotReachableError after START_SECONDS."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_SECONDS
    while True:
        try:
            queue, warnings = await checked_queue(url)
        except NotReachableError:
            if loop.time() > deadline:
                raise
            await asyncio.sleep(0.5)
            continue
        for warning in warnings:
            _log.warning(warning)
        return queue


class _Server(uvicorn.Server):
    """uvicorn's server without its own signal handling: a drain comes before its shutdown."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals alone."""
        yield


class _Stop:
    """Turns signals into the two steps of a gateway's stop."""

    def __init__(self, server: uvicorn.Server, gateway: Gateway, drain_seconds: float) -> None:
        self._server = server
        self._gateway = gateway
        self._drain_seconds = drain_seconds
        self._draining: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def on_signals(self) -> Generator[None, None, None]:
        """Act on SIGTERM and SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _signalled(self) -> None:
        if self._draining is None:
            _log.info("draining", seconds=self._drain_seconds, open_requests=self._open_requests)
            self._gateway.stopping.drain()
            self._draining = asyncio.ensure_future(self._drain())
        else:
            self._end()

    async def _drain(self) -> None:
        """Let open requests finish, then end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_seconds):
                while self._open_requests:  # noqa: ASYNC110 -- uvicorn has a count, and no event for it
                    await asyncio.sleep(DRAIN_LOOK_SECONDS)
        self._end()

    def _end(self) -> None:
        self._gateway.stopping.end()
        self._server.should_exit = True

    @property
    def _open_requests(self) -> int:
        return len(self._server.server_state.tasks)
