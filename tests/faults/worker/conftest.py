"""Real worker processes on the toy model, to be killed, stopped and drained."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.engine.scripted import ByteTokenizer
from headway.engine.values import Sampling
from headway.queueing.client import Client
from headway.queueing.events import START, Cursor, EndEvent, TokenEvent
from headway.queueing.messages import Job, SamplingParams
from headway.queueing.redis_queue import RedisQueue
from headway.services.toy_model import parse_toy, toy_runner

PROGRAM = """
import json, sys
from headway.services.settings import WorkerSettings
from headway.services.worker import run_worker
sys.exit(run_worker(WorkerSettings(**json.loads(sys.argv[1]))))
"""


class WorkerProcess:
    """One worker, its exit code and its log."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.worker_id: str = settings["worker_id"]
        self.log_path = folder / f"{self.worker_id}.log"
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, json.dumps(settings)], stdout=log, stderr=log
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log's lines about one kind of event."""
        lines = (line for line in self.log_path.read_text().splitlines() if line.startswith("{"))
        return [line for line in map(json.loads, lines) if line["event"] == name]

    async def logged(self, name: str) -> dict[str, Any]:
        """Wait for an event in the log."""
        while not (found := self.events(name)):
            assert self.process.poll() is None, f"the worker ended: {self.log_path.read_text()[-3000:]}"
            await asyncio.sleep(0.02)
        return found[0]

    async def ended(self) -> int:
        """Wait for its end; the exit code, minus the signal if it was killed."""
        while (code := self.process.poll()) is None:
            await asyncio.sleep(0.02)
        return code

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def kill(self) -> None:
        self.process.kill()
        await self.ended()

    async def page(self, path: str) -> tuple[int, str]:
        """Status and body of one of its pages."""
        base = (await self.logged("metrics_served"))["url"].removesuffix("/metrics")

        def fetch() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(base + path, timeout=5) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        return await asyncio.to_thread(fetch)


SpawnWorker = Callable[..., WorkerProcess]
ToyText = Callable[[str, int], str]
ToyJob = Callable[..., Job]
Follow = Callable[..., Coroutine[Any, Any, tuple[str, EndEvent]]]
Committed = Callable[[Client, str, int], Awaitable[None]]


@pytest.fixture
def spawn_worker(tmp_path: Path) -> Iterator[SpawnWorker]:
    """``spawn_worker(redis_url, "w-1", lease_seconds=1, …)``; all of them are gone after the test."""
    started: list[WorkerProcess] = []

    def spawn(redis_url: str, worker_id: str, **settings: Any) -> WorkerProcess:
        given = {
            "redis_url": redis_url,
            "worker_id": worker_id,
            "model": "scripted:ms_per_step=5",
            "lease_seconds": 1.0,
            "log_format": "json",
            **settings,
        }
        started.append(WorkerProcess(tmp_path, given))
        return started[-1]

    yield spawn
    for worker in started:
        worker.process.kill()
        worker.process.wait()


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    async with Client(RedisQueue(redis_url)) as made:
        await made.queue.check_server()
        yield made


@pytest.fixture
def toy_job() -> ToyJob:
    """``toy_job(prompt, max_tokens, **sampling)``, greedy."""

    def make(prompt: str, max_tokens: int, **sampling: object) -> Job:
        fields = {"temperature": 0, "max_tokens": max_tokens, **sampling}
        return Job(model="scripted", prompt=prompt, sampling=SamplingParams.model_validate(fields))

    return make


@pytest.fixture
def toy_text() -> ToyText:
    """What the toy answers to a greedy completion when nothing happens to it."""

    def text(prompt: str, max_tokens: int) -> str:
        tokens = ByteTokenizer().encode(prompt, add_special_tokens=True)
        runner = toy_runner(parse_toy("scripted"))
        return bytes(runner.reference(tokens, Sampling(temperature=0), max_tokens)).decode()

    return text


@pytest.fixture
def follow() -> Follow:
    """A job's text and end, read live; fails on any gap or repeat in cursors."""

    async def read(client: Client, job_id: str, after: Cursor = START) -> tuple[str, EndEvent]:
        text, at, end = "", after.tokens, None
        async for event in client.stream(job_id, after):
            assert end is None, "an event after the end"
            if isinstance(event, TokenEvent):
                at += len(event.token_ids)
                assert event.cursor.tokens == at, "a gap or a repeat"
                text += event.text
            else:
                assert event.cursor.tokens == at
                text += "".join(choice.tail for choice in event.choices)
                end = event
        assert end is not None
        return text, end

    return read


@pytest.fixture
def committed() -> Committed:
    """Wait until a job has at least so many tokens in its stream."""

    async def wait(client: Client, job_id: str, tokens: int) -> None:
        while (await client.status(job_id)).committed_tokens < tokens:
            await asyncio.sleep(0.01)

    return wait
