"""``headway batch worker``: one process of the batch service, a Celery worker and its clock in one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any, Final

from celery import signals  # type: ignore[import-untyped]  # it has no types; all of it stays in two files
from celery.beat import EmbeddedService, Scheduler  # type: ignore[import-untyped]  # the same
from celery.exceptions import SecurityWarning  # type: ignore[import-untyped]  # the same
from prometheus_client import disable_created_metrics

from headway import __version__
from headway.services.batch.batch_metrics import BatchMetrics
from headway.services.batch.batch_pages import BatchPages
from headway.services.batch.celery_app import QUEUE, make_app
from headway.services.batch.errands import SENDS_AT_ONCE
from headway.services.batch.settings import BatchSettings
from headway.services.batch.storage import Storage
from headway.services.connection import checked_queue, close_queue
from headway.services.errors import NotReachableError
from headway.services.logs import configure_logging, get_logger
from headway.services.readiness import tell_ready
from headway.services.settings import mask_password

START_SECONDS: Final = 30.0
NICENESS: Final = 10
"""Nobody waits for a batch's next line: whoever computes for somebody on this machine goes first."""

_log = get_logger("batch")


def run_batch_worker(settings: BatchSettings) -> int:
    """Work until stopped; the exit code. Raises ServiceError for what is expected to go wrong."""
    # A second series for each counter, of which nothing here makes use.
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the client library says no types here
    configure_logging(level=settings.log_level, format=settings.log_format)
    _quieten(settings.log_level)
    os.nice(NICENESS)
    urls = {"redis_url": mask_password(settings.redis_url), "files": mask_password(settings.files)}
    _log.info("starting", version=__version__, **urls)
    Storage(settings.files).check()
    _await_queue(settings.redis_url)
    app, errands = make_app(settings)
    pages = _pages(settings, errands.metrics)
    # Threads, since the tasks wait for jobs; and a clock in each process, so that none is needed beside them:
    # what two clocks ask for is asked for once (`Errands.look`).
    clock = EmbeddedService(app, thread=True, scheduler_cls=Scheduler)
    worker = app.Worker(
        pool="threads",
        # What is due must be seen while every turn is taken and every receiver is slow.
        concurrency=settings.concurrency + SENDS_AT_ONCE + 2,
        queues=[QUEUE],
        hostname=f"batch-{os.getpid()}@{socket.gethostname()}",
        loglevel=settings.log_level.upper(),
        quiet=True,
        without_mingle=True,
        without_gossip=True,
    )

    def ready(**_: Any) -> None:
        clock.start()
        pages.came_round()
        app.send_task("headway.due", expires=10)  # what waits for us need not wait for the clock
        _log.info("ready", concurrency=settings.concurrency)
        if settings.ready_fd is not None:
            tell_ready(settings.ready_fd)

    def stopping(**_: Any) -> None:
        pages.leave()
        errands.stop()

    told: Any = signals
    told.worker_ready.connect(ready, weak=False)
    told.worker_shutting_down.connect(stopping, weak=False)
    told.heartbeat_sent.connect(partial(_came_round, pages, settings.heartbeat_file), weak=False)
    worker.start()
    errands.stop()
    clock.stop()
    pages.stop()
    _log.info("stopped")
    return int(worker.exitcode or 0)


def _came_round(pages: BatchPages, file: Path | None, **_: Any) -> None:
    """Celery's loop did. It does not while the broker is away: watchers should wait longer."""
    pages.came_round()
    if file is not None:
        with contextlib.suppress(OSError):  # a full disk is no reason to stop
            file.touch()


def _pages(settings: BatchSettings, metrics: BatchMetrics) -> BatchPages:
    """The pages, served if they are to be; raises StartError."""
    pages = BatchPages(settings.redis_url, metrics, time.monotonic)
    if settings.metrics_port is not None:
        port = pages.start(settings.metrics_host, settings.metrics_port)
        _log.info("metrics_served", url=f"http://{settings.metrics_host}:{port}/metrics")
    return pages


def _quieten(level: str) -> None:
    """Celery tells of every task that it sends and does: every other second, for nothing but a look."""
    if level != "debug":
        for name in ("celery", "kombu"):
            logging.getLogger(name).setLevel(logging.WARNING)
    # It warns of root because pickled messages would run as root; only JSON is accepted here.
    warnings.filterwarnings("ignore", category=SecurityWarning)


def _await_queue(url: str) -> None:
    """Return once the queue's server answers and is prepared; raises NotReachableError, StartError."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            asyncio.run(_check(url))
        except NotReachableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return


async def _check(url: str) -> None:
    queue, complaints = await checked_queue(url)
    await close_queue(queue)
    for warning in complaints:
        _log.warning(warning)
