"""The worker process: ``run_worker`` connects, loads, works until a signal, and says how it ended.

Exit codes: 0 stopped in order; 1 the engine or a loop died (its jobs were handed on as crashed), or the
second signal came; 2 the settings or the model can never work, so a restart would not help; 3 no server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import uvloop
from prometheus_client import disable_created_metrics

from headway.engine.errors import ModelError
from headway.queueing.errors import QueueingError, QueueUnavailableError, ServerUnsuitableError
from headway.queueing.messages import MODEL_PATTERN
from headway.queueing.protocol import Queue
from headway.queueing.redis_queue import RedisQueue
from headway.queueing.settings import QueueSettings
from headway.queueing.worker_card import WorkerCard
from headway.services.backoff import Backoff
from headway.services.collector import look_for_cycles_seldom
from headway.services.connection import check_url, not_reachable
from headway.services.errors import ServiceError, StartError, UsageError
from headway.services.logs import configure_logging, get_logger
from headway.services.model_host import ModelHost, build_engine
from headway.services.placement import stay
from headway.services.settings import WorkerSettings, mask_password, new_worker_id, served_name, shown
from headway.services.start_tracing import start_tracing
from headway.services.stop_signals import StopSignals
from headway.services.worker_card import fell_back, worker_card
from headway.services.worker_core import Worker
from headway.services.worker_http import WorkerHttp
from headway.services.worker_loops import heartbeat_loop

if TYPE_CHECKING:
    from headway.services.job_traces import JobTraces

_log = get_logger("worker")


def run_worker(settings: WorkerSettings) -> int:
    """Serve one model until SIGTERM or SIGINT; returns the exit code. Errors are logged, not raised."""
    settings = replace(settings, worker_id=settings.worker_id or new_worker_id())
    look_for_cycles_seldom()
    # A second series for each counter, of which nothing here makes use.
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the client library says no types here
    configure_logging(
        level=settings.log_level, format=settings.log_format, fields={"worker": settings.worker_id}
    )
    try:
        _check(settings)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_Process(settings).run())
    except ModelError as error:
        _log.error("model_not_loaded", model=settings.model, error=str(error))
        return UsageError.exit_code
    except ServiceError as error:
        _log.error("cannot_start", error=str(error), hint=error.hint)
        return error.exit_code


def _check(settings: WorkerSettings) -> None:
    """Raise UsageError for values that can never work."""
    name = served_name(settings.model, settings.served_name)
    if not re.match(MODEL_PATTERN, name):
        raise UsageError(
            f"no job can ask for a model called {name!r}",
            hint="--served-name NAME: letters, digits, '.', '_', '-', and at most one '/'",
        )
    for field in ("lease_seconds", "hung_after_seconds", "heartbeat_seconds", "unacknowledged_tokens"):
        if getattr(settings, field) <= 0:
            raise UsageError(f"{field} must be more than 0 (it is {getattr(settings, field)})")


class _Process:
    """What lives from the start of the process to its end: the signals, the queue and the HTTP pages."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._model = served_name(settings.model, settings.served_name)
        self._signals = StopSignals()
        self._worker: Worker | None = None
        self._started_unix = int(time.time())
        self._tracing = start_tracing(
            settings.otlp_url, service="headway-worker", instance=settings.worker_id
        )
        self._http = WorkerHttp(self._metrics, self._health, self._readiness, self._trace)

    async def run(self) -> int:
        """The whole life. Raises ServiceError, ModelError."""
        _log.info("worker_starting", **shown(self._settings))
        with self._signals.caught():
            queue = RedisQueue(
                check_url(self._settings.redis_url),
                settings=QueueSettings(lease_seconds=self._settings.lease_seconds),
            )
            try:
                await self._listen()
                if not await self._reach(queue):
                    return 0
                host = await self._load(queue)
                return await self._work(queue, host)
            finally:
                await self._leave(queue)

    async def _listen(self) -> None:
        settings = self._settings
        if settings.metrics_port is None:
            return
        try:
            port = await self._http.start(settings.metrics_host, settings.metrics_port)
        except OSError as error:
            raise StartError(
                f"cannot serve metrics on {settings.metrics_host}:{settings.metrics_port}: {error.strerror}",
                hint="--metrics-port 0 takes a free port",
            ) from None
        _log.info("metrics_served", url=f"http://{settings.metrics_host}:{port}/metrics")

    async def _reach(self, queue: Queue) -> bool:
        """Wait for the server, which may be starting or reading its file; False: stopped meanwhile."""
        backoff = Backoff(0.05, 1.0)
        give_up = asyncio.get_running_loop().time() + self._settings.start_timeout_seconds
        is_told = False
        while True:
            try:
                for warning in await queue.check_server():
                    _log.warning("server_setting", warning=warning)
            except QueueUnavailableError as error:
                if self._signals.first.is_set():
                    return False
                if asyncio.get_running_loop().time() > give_up:
                    raise not_reachable(self._settings.redis_url, error) from None
                if not is_told:
                    is_told = True
                    _log.info(
                        "waiting_for_server",
                        url=mask_password(self._settings.redis_url),
                        up_to_seconds=self._settings.start_timeout_seconds,
                    )
                await asyncio.sleep(backoff.next_seconds())
            except ServerUnsuitableError as error:
                url = mask_password(self._settings.redis_url)
                raise StartError(f"{url} would lose jobs: {error}") from None
            else:
                return True

    async def _load(self, queue: Queue) -> ModelHost:
        """Load the model in a thread; the fleet sees a worker that is starting."""
        beating = asyncio.create_task(
            heartbeat_loop(queue, self._starting_card, self._settings.heartbeat_seconds)
        )
        loading = asyncio.create_task(asyncio.to_thread(build_engine, self._settings))
        stopped = asyncio.create_task(self._signals.first.wait())
        await asyncio.wait((loading, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        beating.cancel()
        if not loading.done():
            # A load cannot be interrupted, and nothing has been claimed yet: there is nothing to wait for.
            _log.info("worker_stopped", while_loading=True)
            await self._leave(queue)
            os._exit(0)
        return loading.result()

    async def _work(self, queue: Queue, host: ModelHost) -> int:
        stay(host.placement)  # before the engine's thread starts, which stays there too
        worker = self._worker = Worker(queue, host, self._settings, traces=self._job_traces())
        _log.info(
            "worker_ready",
            model=self._model,
            max_model_len=host.model.max_model_len,
            tool_parser=host.tool_format,
            reasoning_parser=host.reasoning_format,
            **host.computation,
        )
        if fell_back(host.kernels):
            _log.warning("native_kernels_missing", kernels=host.kernels, effect="several times slower")
        try:
            await worker.run(self._signals.first, self._signals.second)
        except Exception:
            _log.critical("worker_died", exc_info=True)
            # Not in order, so these claims count as crashes; but nobody has to wait for their leases.
            with contextlib.suppress(QueueingError, TimeoutError):
                async with asyncio.timeout(2.0):
                    await queue.expire_worker(self._model, self._settings.worker_id)
            return 1
        _log.info("worker_stopped")
        return 1 if self._signals.second.is_set() else 0

    async def _leave(self, queue: Queue) -> None:
        # The server may be gone as well: then the card expires by itself.
        with contextlib.suppress(QueueingError, TimeoutError):
            async with asyncio.timeout(1.0):
                await queue.farewell(self._settings.worker_id)
        await queue.close()
        await self._http.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    def _job_traces(self) -> JobTraces | None:
        if self._tracing is None:
            return None
        from headway.services.job_traces import JobTraces

        return JobTraces(self._tracing, self._settings.worker_id, self._model, time.monotonic)

    def _starting_card(self) -> WorkerCard:
        return worker_card(self._settings, self._model, "starting", created_unix=self._started_unix)

    def _metrics(self) -> bytes:
        return b"" if self._worker is None else self._worker.render_metrics()

    def _trace(self) -> bytes:
        return b"" if self._worker is None else self._worker.render_trace()

    def _health(self) -> tuple[bool, str]:
        return (True, "starting") if self._worker is None else self._worker.health()

    def _readiness(self) -> tuple[bool, str]:
        return (False, "starting") if self._worker is None else self._worker.readiness()
