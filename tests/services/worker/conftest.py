"""A worker inside the test's own event loop, on a MemoryQueue and the toy model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from headway.engine.scripted import ByteTokenizer
from headway.engine.values import Sampling
from headway.queueing.client import Client
from headway.queueing.events import EndEvent, TokenEvent
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.messages import Job, SamplingParams
from headway.queueing.protocol import Queue
from headway.queueing.settings import QueueSettings
from headway.services.job_traces import JobTraces
from headway.services.model_host import ModelHost, build_engine
from headway.services.settings import WorkerSettings
from headway.services.toy_model import parse_toy, toy_runner
from headway.services.tracing import Tracing
from headway.services.worker_core import Worker


@dataclass
class Running:
    """A worker at work; leaving the context stops it at once, but in order."""

    worker: Worker
    host: ModelHost
    task: asyncio.Task[None]
    stop: asyncio.Event
    stop_now: asyncio.Event

    async def drained(self) -> None:
        """Ask it to stop and wait for its end."""
        self.stop.set()
        await self.task

    async def vanish(self) -> None:
        """As if the process were gone: nothing is said, nothing handed back."""
        self.task.cancel()
        await asyncio.wait((self.task,))


StartWorker = Callable[..., AbstractAsyncContextManager[Running]]
JobMaker = Callable[..., Job]
ToyText = Callable[[str, int], str]
ReadAll = Callable[[Client, str], Awaitable[tuple[list[TokenEvent], EndEvent]]]


@pytest.fixture
def queue() -> MemoryQueue:
    return MemoryQueue(QueueSettings(lease_seconds=1.0))


@pytest.fixture
def client(queue: MemoryQueue) -> Client:
    return Client(queue)


@pytest.fixture
def start_worker(queue: MemoryQueue) -> StartWorker:
    """Context manager: a worker with these settings, on ``queue`` unless another is given."""

    @asynccontextmanager
    async def start(
        *, on: Queue | None = None, traced_by: Tracing | None = None, **settings: Any
    ) -> AsyncIterator[Running]:
        given = {"worker_id": "w-1", "model": "scripted:ms_per_step=1", "lease_seconds": 1.0, **settings}
        made = WorkerSettings(**given)
        host = build_engine(made)
        traces = None
        if traced_by is not None:
            traces = JobTraces(traced_by, made.worker_id, host.model.name, time.monotonic)
        worker = Worker(on or queue, host, made, traces=traces)
        stop, stop_now = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(worker.run(stop, stop_now))
        running = Running(worker, host, task, stop, stop_now)
        try:
            yield running
            if not task.done():
                stop.set()
                stop_now.set()
                await asyncio.wait_for(task, 10)
                host.engine.check_books()
        finally:
            task.cancel()
            await asyncio.wait((task,))

    return start


@pytest.fixture
def job() -> JobMaker:
    """Make a greedy job for the toy: ``job(prompt, max_tokens, **sampling)``."""

    def make(prompt: str, max_tokens: int | None = 20, **sampling: object) -> Job:
        fields = {"temperature": 0, "max_tokens": max_tokens, **sampling}
        return Job(model="scripted", prompt=prompt, sampling=SamplingParams.model_validate(fields))

    return make


@pytest.fixture
def toy_text() -> ToyText:
    """What the toy answers to a greedy completion when nothing happens to it."""

    def text(prompt: str, max_tokens: int) -> str:
        runner = toy_runner(parse_toy("scripted"))
        tokens = ByteTokenizer().encode(prompt, add_special_tokens=True)
        return bytes(runner.reference(tokens, Sampling(temperature=0), max_tokens)).decode()

    return text


@pytest.fixture
def read_all() -> ReadAll:
    """All events of a job, checked: cursors grow by the tokens that came, and the one end comes last."""

    async def read(client: Client, job_id: str) -> tuple[list[TokenEvent], EndEvent]:
        tokens: list[TokenEvent] = []
        end: EndEvent | None = None
        at = 0
        async for event in client.stream(job_id):
            assert end is None, "an event after the end"
            if isinstance(event, EndEvent):
                end = event
            else:
                at += len(event.token_ids)
                assert event.cursor.tokens == at, "a gap or a repeat"
                tokens.append(event)
        assert end is not None, "the stream ended without an end"
        assert end.cursor.tokens == at
        return tokens, end

    return read
