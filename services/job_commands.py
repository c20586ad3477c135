"""What ``headway submit``, ``tail``, ``cancel`` and ``jobs retry`` do once their options are read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

from headway.queueing.client import Client
from headway.queueing.errors import (
    InvalidJobError,
    InvalidTenantError,
    QueueingError,
    QueueUnavailableError,
    UnknownJobError,
)
from headway.queueing.events import EndEvent, EndReason, StreamEvent, TokenEvent
from headway.queueing.protocol import Submitted
from headway.services.connection import close_queue, locate, not_reachable, open_queue
from headway.services.errors import ServiceError, UsageError
from headway.services.settings import served_name

Outcome = TypeVar("Outcome")

PATIENCE_SECONDS: Final = 30.0
"""How long a tail outlives a server that restarts."""
GOOD_ENDS: Final = (EndReason.STOP, EndReason.LENGTH)


def submit_job(fields: dict[str, Any], model: str | None, redis_url: str | None, state_dir: Path) -> str:
    """Post a job; its id. Raises ServiceError."""
    url, state = locate(redis_url, state_dir)
    served = None if state is None else state.model
    if model is not None:
        served = served_name(model)  # HEADWAY_MODEL may hold a path, since `headway up` reads it too

    async def post(client: Client) -> str:
        name = served if served is not None else await _only_model(client)
        submitted = await client.submit(model=name, **fields)
        await note_unserved(client, name, "; the job waits for one")
        return submitted.job_id

    return with_client(url, post)


async def note_unserved(client: Client, model: str, so_what: str) -> None:
    """Say that no worker of this model was ever here: a mistyped name should not pass in silence."""
    # Only a note: a server that leaves, or a user who may not ask, is no error here.
    with contextlib.suppress(QueueingError):
        models = await client.queue.models()
        if model not in models:
            known = f" (served here: {', '.join(models)})" if models else ""
            print(f"headway: no worker has served {model!r} yet{so_what}{known}", file=sys.stderr)


async def _only_model(client: Client) -> str:
    """The one model that is served; raises UsageError when there is a choice, or none."""
    models = await client.queue.models()
    if len(models) == 1:
        return models[0]
    if models:
        raise UsageError("several models are served", hint="--model " + " or --model ".join(models))
    raise UsageError("no worker has served a model here yet", hint="--model NAME posts the job nevertheless")


def retry_job(job_id: str, redis_url: str | None, state_dir: Path) -> Submitted:
    """Post an ended job's body as a new job. Raises ServiceError."""
    url, _ = locate(redis_url, state_dir)

    async def retry(client: Client) -> Submitted:
        return await client.queue.retry(job_id)

    return with_client(url, retry)


def cancel_job(job_id: str, redis_url: str | None, state_dir: Path) -> str:
    """Ask for the end of a job; the state it was in. Raises ServiceError."""
    url, _ = locate(redis_url, state_dir)

    async def cancel(client: Client) -> str:
        return str(await client.cancel(job_id, "cancelled from the command line"))

    return with_client(url, cancel)


def tail_job(job_id: str, redis_url: str | None, state_dir: Path, *, as_json: bool) -> int:
    """Follow a job from its start to its end; 0 when it ended well, else 1. Raises ServiceError."""
    url, _ = locate(redis_url, state_dir)
    shown = _JsonLines() if as_json else _Text()

    async def follow(client: Client) -> int:
        await client.status(job_id)  # an unknown job, or no server at all, is told at once
        async for event in client.stream(job_id):
            shown.show(event)
            if isinstance(event, EndEvent):
                return _exit_code(event)
        return 1

    try:
        return with_client(url, follow)
    except BrokenPipeError:
        # The reader has seen enough (tail … | head). Nothing may be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _exit_code(end: EndEvent) -> int:
    if end.reason in GOOD_ENDS:
        return 0
    reason = end.error.message if end.error is not None else _REASONS.get(end.reason, end.reason.value)
    print(f"headway: {reason}", file=sys.stderr)
    return 1


_REASONS: Final = {
    EndReason.CANCELLED: "the job was cancelled",
    EndReason.DEADLINE: "the job's deadline passed",
}


class _Text:
    """The first choice's text as it comes; the others whole, once all has ended."""

    def __init__(self) -> None:
        self._others: dict[int, str] = {}

    def show(self, event: StreamEvent) -> None:
        if isinstance(event, TokenEvent):
            if event.choice == 0:
                _write(event.text)
            else:
                self._others[event.choice] = self._others.get(event.choice, "") + event.text
            return
        tails = [choice.tail for choice in event.choices] or [""]
        _write(tails[0] + "\n")
        for choice, text in sorted(self._others.items()):
            tail = tails[choice] if choice < len(tails) else ""
            _write(f"\n--- choice {choice} ---\n{text}{tail}\n")


class _JsonLines:
    """One event a line, with its cursor."""

    def show(self, event: StreamEvent) -> None:
        kind = "end" if isinstance(event, EndEvent) else "tokens"
        fields = {"event": kind, **asdict(event), "cursor": str(event.cursor)}
        _write(orjson.dumps(fields, default=_as_json).decode() + "\n")


def _as_json(value: object) -> object:
    """The raw bytes of tokens, as the OpenAI API shows them: a list of numbers."""
    if isinstance(value, bytes):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def with_client(url: str, act: Callable[[Client], Awaitable[Outcome]]) -> Outcome:
    """Run one action with a client; the queue's errors become those of the command line."""

    async def run() -> Outcome:
        queue = open_queue(url)
        try:
            return await act(Client(queue, patience_seconds=PATIENCE_SECONDS))
        finally:
            await close_queue(queue)

    try:
        return asyncio.run(run())
    except QueueUnavailableError as error:
        raise not_reachable(url, error) from None
    except (InvalidJobError, InvalidTenantError) as error:
        raise UsageError(str(error)) from None
    except UnknownJobError as error:
        raise ServiceError(str(error), hint="headway jobs list") from None
    except QueueingError as error:
        raise ServiceError(str(error)) from None
    except KeyboardInterrupt:
        sys.exit(130)  # as shells say it: ended by Ctrl-C; the job goes on
