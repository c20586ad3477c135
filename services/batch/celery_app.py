"""The batch service as a Celery application. Celery carries what is a task; jobs go through our own queue.

A task that is lost with its worker is no loss: every few seconds somebody looks what is due and asks for it
again. So messages are acknowledged as they arrive, nothing waits in Celery for long, and no results are kept.

    due (every 2 s) ─► take a turn at a batch, send a webhook's message     tidy, books (every 15 minutes)
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from celery import Celery  # type: ignore[import-untyped]  # it has no types; all of it stays in two files
from celery.schedules import schedule  # type: ignore[import-untyped]  # the same

from headway.services.batch.broker import broker_of
from headway.services.batch.errands import Errands
from headway.services.batch.settings import BatchSettings

LOOK_SECONDS: Final = 2.0
SELDOM_SECONDS: Final = 900.0
TURN_EXPIRES_SECONDS: Final = 10.0
"""A turn that nobody had a place for meanwhile is asked for again by then."""
SEND_EXPIRES_SECONDS: Final = 30.0
"""Sooner than it is asked for again."""
QUEUE: Final = "headway"


def make_app(settings: BatchSettings) -> tuple[Any, Errands]:
    """The Celery application and what its tasks do. Raises UsageError."""
    broker_url, options = broker_of(settings.redis_url, settings.broker_url)
    errands = Errands(settings)
    app: Any = Celery("headway", broker=broker_url)
    app.conf.update(
        broker_transport_options=options,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        task_ignore_result=True,
        task_default_queue=QUEUE,
        task_serializer="json",
        accept_content=["json"],
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        # Where events are on, Flower and `celery events` see the tasks.
        worker_send_task_events=True,
        task_send_sent_event=True,
        enable_utc=True,
        beat_schedule={
            "due": _every(LOOK_SECONDS, "headway.due"),
            "tidy": _every(SELDOM_SECONDS, "headway.tidy"),
            "books": _every(SELDOM_SECONDS, "headway.books"),
        },
    )
    _add_tasks(app, errands)
    return app, errands


def _every(seconds: float, task: str) -> dict[str, object]:
    # One that nobody took in time is pointless: the next is on its way.
    when = schedule(seconds, nowfun=steady_now)
    return {"task": task, "schedule": when, "options": {"expires": max(10.0, seconds / 2)}}


def steady_now() -> datetime:
    """The time by a clock that nobody sets: by the machine's own, nothing would be due for as long as it was
    put back."""
    return _BEGAN + timedelta(seconds=time.monotonic() - _BEGAN_MONOTONIC)


_BEGAN: Final = datetime.now(UTC)
_BEGAN_MONOTONIC: Final = time.monotonic()


def _add_tasks(app: Any, errands: Errands) -> None:
    def due() -> None:
        found = errands.look()
        for _ in range(found.turns):
            app.send_task("headway.batch", expires=TURN_EXPIRES_SECONDS)
        for message_id in found.messages:
            app.send_task("headway.webhook", (message_id,), expires=SEND_EXPIRES_SECONDS)

    def batch(*_asked: str) -> str | None:
        # What earlier versions asked for by its id is asked of whoever is next in line all the same.
        batch_id = errands.take_turn()
        if batch_id is not None:  # the next turn, without waiting for the next look
            app.send_task("headway.due", expires=10)
        return batch_id

    def webhook(message_id: str) -> None:
        if errands.send(message_id):  # the next message of its tenant, without waiting for the next look
            app.send_task("headway.due", expires=10)

    # Functions of their own: Celery counts the self of a bound method among the arguments that a task needs.
    def tidy() -> None:
        errands.tidy()

    def books() -> None:
        errands.keep_books()

    # Not shared: else a second application of this process would carry the first one's functions.
    for task in (due, batch, webhook, tidy, books):
        app.task(task, name=f"headway.{task.__name__}", shared=False)
