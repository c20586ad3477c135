"""Client and SyncClient: the verbs of producers, over any queue."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.conftest import ANY
from tests.queueing.conftest import MODEL, emit, stop

import headway
from headway.queueing.client import Client
from headway.queueing.errors import (
    InvalidCursorError,
    InvalidJobError,
    QueueUnavailableError,
    UnknownJobError,
)
from headway.queueing.events import Cursor, EndEvent, EndReason, JobResult, JobState, JobStatus, StreamEvent
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.messages import Job, Priority
from headway.queueing.protocol import Cancelled, Queue
from headway.queueing.redis_queue import RedisQueue
from headway.queueing.sync import SyncClient

if TYPE_CHECKING:
    from tests.conftest import StartRedis


async def serve_one(queue: Queue, tokens: int = 3) -> None:
    """A worker for one job."""
    while not (claims := await queue.claim(MODEL, "w", 1)):
        await queue.wait(MODEL, "w", for_work=Priority.BATCH, timeout_seconds=5)
    for at in range(1, tokens + 1):
        await queue.emit([emit(claims[0], at)])
        await asyncio.sleep(0.001)
    await queue.finish([stop(claims[0], tokens)])


async def test_a_client_submits_streams_and_fetches() -> None:
    async with Client(MemoryQueue()) as client:
        worker = asyncio.create_task(serve_one(client.queue))
        submitted = await client.submit(model=MODEL, prompt="hi")
        events = [event async for event in client.stream(submitted.job_id)]
        assert [str(event.cursor) for event in events] == ["1-0", "2-0", "3-0", "3-1"]
        assert [event async for event in client.stream(submitted.job_id, "2-0")] == events[2:]
        assert [event async for event in client.stream(submitted.job_id, events[-1].cursor)] == []
        assert (await client.result(submitted.job_id)).choices[0].text == "t1 t2 t3 "
        assert (await client.status(submitted.job_id)).state is JobState.FINISHED
        assert await client.cancel(submitted.job_id) is Cancelled.FINISHED
        await worker


async def test_run_waits_for_the_answer() -> None:
    client = Client(MemoryQueue())
    worker = asyncio.create_task(serve_one(client.queue))
    result = await client.run(Job(model=MODEL, prompt="hi"))
    assert result.reason is EndReason.STOP
    await worker


async def test_a_client_refuses_what_cannot_be_a_job() -> None:
    client = Client(MemoryQueue())
    with pytest.raises(InvalidJobError, match="exactly one of"):
        await client.submit(model=MODEL)
    with pytest.raises(InvalidJobError) as refused:
        await client.submit(model=MODEL, prompt="x", sampling={"temperature": -1})
    assert refused.value.param == "sampling.temperature"
    with pytest.raises(TypeError, match="not both"):
        await client.submit(Job(model=MODEL, prompt="x"), prompt="y")
    with pytest.raises(InvalidCursorError):
        await anext(client.stream("tiny:0:k", "nonsense"))
    with pytest.raises(UnknownJobError):
        await anext(client.stream("tiny:0:k"))
    with pytest.raises(UnknownJobError):
        await client.result("tiny:0:k")


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "a\udcff"},
        {"messages": [{"role": "user", "content": "a\udcff"}]},
        {"prompt": "a", "metadata": {"k": "\udcff"}},
        {"prompt": "a", "metadata": {"\udcff": "v"}},
        {"prompt": "a", "idempotency_key": "\udcff"},
        {"prompt": "a", "sampling": {"stop": ["\udcff"]}},
    ],
)
async def test_text_that_utf8_cannot_carry_is_an_invalid_job_in_every_field(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidJobError):
        await Client(MemoryQueue()).submit(model=MODEL, **fields)


async def test_a_result_is_not_waited_for_longer_than_asked() -> None:
    client = Client(MemoryQueue())
    submitted = await client.submit(model=MODEL, prompt="x")
    with pytest.raises(TimeoutError):
        await client.result(submitted.job_id, timeout_seconds=0.02)


async def test_a_stream_outlives_a_restart_of_the_server(start_redis: StartRedis) -> None:
    server = start_redis(ANY, "--appendonly", "yes", "--appendfsync", "always")
    async with Client.connect(server.url) as client:
        submitted = await client.submit(model=MODEL, prompt="x")
        (claim,) = await client.queue.claim(MODEL, "w", 1)
        await client.queue.emit([emit(claim, 1)])
        events: list[StreamEvent] = []
        async for event in client.stream(submitted.job_id):
            events.append(event)
            if event.cursor == Cursor(1):
                server.kill()
                server.start()
                await client.queue.finish([stop(claim, 1)])
        assert [str(event.cursor) for event in events] == ["1-0", "1-1"]


class AwayForAMoment(MemoryQueue):
    """Its server is away at the second call of a reader: the one after a read that brought nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def read(self, job_id: str, after: Cursor, *, wait_seconds: float) -> tuple[StreamEvent, ...]:
        self.calls += 1
        return () if self.calls == 1 else await super().read(job_id, after, wait_seconds=wait_seconds)

    async def status(self, job_id: str) -> JobStatus:
        self.calls += 1
        if self.calls == 2:
            raise QueueUnavailableError("away", retry_after_seconds=0.01)
        return await super().status(job_id)


async def test_a_stream_is_patient_between_two_reads_too() -> None:
    queue = AwayForAMoment()
    client = Client(queue)
    submitted = await client.submit(model=MODEL, prompt="x")
    await client.cancel(submitted.job_id)
    (end,) = [event async for event in client.stream(submitted.job_id)]
    assert isinstance(end, EndEvent)


class AwayForEachFirstCall(MemoryQueue):
    """Its server is away when the answer is asked for, and again when the record is."""

    def __init__(self) -> None:
        super().__init__()
        self.met: set[str] = set()

    def _away_once(self, call: str) -> None:
        if call not in self.met:
            self.met.add(call)
            raise QueueUnavailableError("away", retry_after_seconds=0.01)

    async def result(self, job_id: str) -> JobResult | None:
        self._away_once("result")
        return await super().result(job_id)

    async def status(self, job_id: str) -> JobStatus:
        self._away_once("status")
        return await super().status(job_id)


async def test_who_waits_for_an_answer_is_as_patient_as_a_stream() -> None:
    client = Client(AwayForEachFirstCall())
    worker = asyncio.create_task(serve_one(client.queue))
    result = await client.run(model=MODEL, prompt="x")
    assert result.choices[0].text == "t1 t2 t3 "
    await worker


async def test_a_stream_gives_up_when_its_patience_ends(start_redis: StartRedis) -> None:
    server = start_redis("redis7")
    async with Client.connect(server.url, patience_seconds=0) as client:
        submitted = await client.submit(model=MODEL, prompt="x")
        server.kill()
        with pytest.raises(QueueUnavailableError):
            await anext(client.stream(submitted.job_id))


def test_the_blocking_client_does_the_same_from_a_plain_script(each_redis_url: str) -> None:
    async def serve() -> None:
        queue = RedisQueue(each_redis_url)
        await serve_one(queue)
        await queue.close()

    worker = threading.Thread(target=lambda: asyncio.run(serve()))
    worker.start()
    with SyncClient.connect(each_redis_url) as client:
        submitted = client.submit(model=MODEL, prompt="hi")
        events = list(client.stream(submitted.job_id))
        assert [str(event.cursor) for event in events] == ["1-0", "2-0", "3-0", "3-1"]
        assert client.result(submitted.job_id).choices[0].text == "t1 t2 t3 "
        assert client.status(submitted.job_id).state is JobState.FINISHED
        for event in client.stream(submitted.job_id):
            assert not isinstance(event, EndEvent)
            break
        assert client.cancel(client.submit(model=MODEL, prompt="x").job_id) is Cancelled.QUEUED
        with pytest.raises(TimeoutError):
            client.result(client.submit(model=MODEL, prompt="x").job_id, timeout_seconds=0.02)
    worker.join()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.submit(model=MODEL, prompt="x")


def test_the_blocking_client_serves_many_threads(redis_url: str) -> None:
    ids: list[str] = []
    with SyncClient.connect(redis_url) as client:
        threads = [
            threading.Thread(target=lambda: ids.append(client.submit(model=MODEL, prompt="x").job_id))
            for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {client.status(job_id).state for job_id in ids} == {JobState.QUEUED}
    assert len(set(ids)) == 16


def test_the_names_of_producers_are_at_the_top() -> None:
    assert headway.Client is Client
    assert headway.Job is Job
    for name in headway.__all__:
        assert getattr(headway, name) is not None
    with pytest.raises(AttributeError):
        _ = headway.Nothing


def test_importing_headway_costs_neither_pydantic_nor_redis() -> None:
    code = "import sys, headway; assert not {'pydantic', 'redis', 'orjson', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
