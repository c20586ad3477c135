"""Moves of a producer and a worker on a RedisQueue."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

import pytest
from tests.queueing.lossy_link import LossyLink

from headway.queueing.claims import Emit, Finish
from headway.queueing.events import (
    START,
    ChoiceEnd,
    ChoiceResult,
    Cursor,
    EndEvent,
    EndReason,
    JobResult,
    StreamEvent,
    TokenEvent,
    Usage,
)
from headway.queueing.protocol import Queue
from headway.queueing.redis_queue import RedisQueue
from headway.queueing.settings import DEFAULTS, QueueSettings

MODEL = "tiny"
TAG = "{tiny:0}"
BODY = b'{"model":"tiny","prompt":"x"}'

OpenQueue = Callable[..., RedisQueue]


@pytest.fixture
async def open_queue() -> AsyncIterator[OpenQueue]:
    """``open_queue(url, settings)``: a queue that is closed after the test."""
    queues: list[RedisQueue] = []

    def make(url: str, settings: QueueSettings = DEFAULTS) -> RedisQueue:
        queues.append(RedisQueue(url, settings))
        return queues[-1]

    yield make
    for queue in queues:
        await queue.close()


def token(at: int) -> TokenEvent:
    return TokenEvent(Cursor(at), 0, f"t{at} ", (at,))


class Held(Protocol):
    """What a worker needs to write: the job's id and its claim token."""

    @property
    def job_id(self) -> str: ...

    @property
    def token(self) -> str: ...


def emit(claim: Held, *ats: int) -> Emit:
    return Emit(claim.job_id, claim.token, tuple(map(token, ats)))


def stop(claim: Held, tokens: int) -> Finish:
    """A stop after this many tokens."""
    usage = Usage(1, tokens)
    text = "".join(token(at).text for at in range(1, tokens + 1))
    choice = ChoiceResult(text, tuple(range(1, tokens + 1)), EndReason.STOP)
    end = EndEvent(Cursor(tokens, 1), EndReason.STOP, (ChoiceEnd(EndReason.STOP),), usage)
    result = JobResult(claim.job_id, EndReason.STOP, (choice,), usage)
    return Finish(claim.job_id, claim.token, end, result)


async def follow(queue: Queue, job_id: str) -> list[StreamEvent]:
    """Every event of a job, up to its end."""
    seen: list[StreamEvent] = []
    while not seen or not isinstance(seen[-1], EndEvent):
        seen += await queue.read(job_id, seen[-1].cursor if seen else START, wait_seconds=30)
    return seen


@pytest.fixture
async def lossy_link(redis_url: str) -> AsyncIterator[LossyLink]:
    """A link in front of the shared server."""
    with tempfile.TemporaryDirectory(prefix="headway-") as folder:
        link = LossyLink(Path(folder), redis_url.removeprefix("unix://"))
        await link.start()
        yield link
        await link.stop()
