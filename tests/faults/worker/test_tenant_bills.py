"""Tenants' accounts under fire: real producers and workers, killed, with clocks that are minutes apart."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from headway.queueing.client import Client
from headway.queueing.quota_values import TenantUsage
from headway.queueing.redis_queue import RedisQueue
from headway.queueing.settings import QueueSettings
from headway.queueing.settling import keep_reservations, settle

if TYPE_CHECKING:
    from tests.faults.worker.conftest import Committed, Follow, SpawnWorker, ToyJob

ACME = "acme"

PRODUCER = """
import asyncio, json, sys, time
from headway.queueing.admission import Admission
from headway.queueing.errors import QuotaExceededError
from headway.queueing.messages import Job
from headway.queueing.redis_queue import RedisQueue
from headway.queueing.settings import QueueSettings

url, clock_shift, count, stops_between = json.loads(sys.argv[1])
clock = lambda: time.time() + clock_shift

async def main():
    queue = RedisQueue(url, QueueSettings(reservation_seconds=0.5 if stops_between else 30), clock=clock)
    await queue.tenant_store.book()
    admission = Admission(queue, clock=clock)
    if stops_between:
        async def never(*_, **__):
            print("reserved", flush=True)
            await asyncio.sleep(60)
        queue.submit = never
    job = Job(model="scripted", prompt="hello", tenant="acme", sampling={"max_tokens": 8})
    print("ready", flush=True)
    sys.stdin.readline()
    outcomes = await asyncio.gather(*(admission.submit(job) for _ in range(count)), return_exceptions=True)
    refused = sum(isinstance(each, QuotaExceededError) for each in outcomes)
    if refused < sum(isinstance(each, Exception) for each in outcomes):
        raise ExceptionGroup("not refused, but failed", [e for e in outcomes if isinstance(e, Exception)])
    print(json.dumps([count - refused, refused]), flush=True)
    await queue.close()

asyncio.run(main())
"""


class Producers:
    """Processes that wait for a word, and then all submit at once."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, url: str, *, clock_shift: float = 0, count: int = 1, stops_between: bool = False) -> None:
        settings = json.dumps([url, clock_shift, count, stops_between])
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", PRODUCER, settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)

    def lines(self) -> list[str]:
        """The next line of each."""
        return [process.stdout.readline().strip() for process in self.processes if process.stdout]

    def go(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def producers() -> Iterator[Producers]:
    made = Producers()
    yield made
    made.end()


async def limit(client: Client, **limits: Any) -> None:
    await client.queue.tenant_store.set(ACME, limits)


async def usage(client: Client) -> TenantUsage:
    limits = (await client.queue.tenant_store.book()).limits_of(ACME)
    return await client.queue.quota_store.usage(ACME, limits)


async def test_processes_whose_clocks_differ_by_minutes_share_one_exact_limit(
    each_redis_url: str, producers: Producers
) -> None:
    async with Client(RedisQueue(each_redis_url)) as client:
        await client.queue.check_server()
        await limit(client, rpm=50, concurrency=60)
        for shift in (0, 120, -120, 3600):
            producers.start(each_redis_url, clock_shift=shift, count=50)
        assert producers.lines() == ["ready"] * 4
        producers.go()
        outcomes = [json.loads(line) for line in producers.lines()]
        assert sum(admitted for admitted, _ in outcomes) == 50
        assert sum(refused for _, refused in outcomes) == 150
        assert (await client.queue.depth("scripted")).queued["standard"] == 50  # type: ignore[index]  # a str enum
        assert (await usage(client)).in_flight == 50


async def test_a_producer_killed_between_reserve_and_submit_leaks_nothing(
    redis_url: str, producers: Producers
) -> None:
    async with Client(RedisQueue(redis_url, QueueSettings(reservation_seconds=0.5))) as client:
        await client.queue.check_server()
        await limit(client, rpm=1, tpm=1000, concurrency=1)
        producers.start(redis_url, stops_between=True)
        assert producers.lines() == ["ready"]
        producers.go()
        assert producers.lines() == ["reserved"]
        assert (await usage(client)).in_flight == 1
        producers.end()
        while (now := await usage(client)).in_flight:
            await asyncio.sleep(0.02)
        assert (now.waiting_jobs, now.waiting_tokens, now.held_tokens) == (0, 0, 0)
        await client.submit(
            model="scripted", prompt="x", tenant=ACME
        )  # the one request a minute is free again


async def test_a_worker_killed_in_the_middle_of_an_answer_bills_each_committed_token_once(
    redis_url: str,
    client: Client,
    spawn_worker: SpawnWorker,
    toy_job: ToyJob,
    follow: Follow,
    committed: Committed,
) -> None:
    await limit(client, tpm=100_000, concurrency=1)
    first = spawn_worker(redis_url, "w-1")
    await first.logged("worker_ready")
    submitted = await client.submit(toy_job("survive", 150).model_copy(update={"tenant": ACME}))
    reading = asyncio.create_task(follow(client, submitted.job_id))
    await committed(client, submitted.job_id, 20)
    await first.kill()
    spawn_worker(redis_url, "w-2")
    _, end = await reading
    # Both the worker and this process take it in; whoever comes second changes nothing.
    await settle(client.queue, "scripted")
    async with asyncio.timeout(10):
        while await client.queue.settlements("scripted"):
            await asyncio.sleep(0.02)
    after = await usage(client)
    assert after.spent_tokens == end.usage.prompt_tokens + 150
    assert (after.in_flight, after.held_tokens) == (0, 0)
    assert end.usage.prompt_tokens > 0


async def test_workers_keep_and_settle_by_themselves(
    redis_url: str, client: Client, spawn_worker: SpawnWorker, toy_job: ToyJob, follow: Follow
) -> None:
    await limit(client, tpm=100_000)
    worker = spawn_worker(redis_url, "w-1")
    await worker.logged("worker_ready")
    submitted = await client.submit(toy_job("once", 5).model_copy(update={"tenant": ACME}))
    await follow(client, submitted.job_id)
    async with asyncio.timeout(10):
        while (await usage(client)).in_flight:
            await asyncio.sleep(0.02)
    assert (await usage(client)).spent_tokens > 5


async def test_weights_reach_lane_and_engine_while_the_worker_runs(
    redis_url: str, client: Client, spawn_worker: SpawnWorker
) -> None:
    worker = spawn_worker(redis_url, "w-1", tenant_weights=[["own", 3.0]])
    await worker.logged("worker_ready")
    await worker.logged("weights_applied")
    await client.queue.tenant_store.set(ACME, {"weight": 2.0})
    began = time.monotonic()
    while not any(event["weights"].get(ACME) == 2.0 for event in worker.events("weights_applied")):
        await asyncio.sleep(0.02)
        assert time.monotonic() - began < 20, "never applied"
    assert worker.events("weights_applied")[-1]["weights"] == {"own": 3.0, ACME: 2.0}
    await client.submit(model="scripted", prompt="x", tenant=ACME)
    await client.queue.tenant_store.remove(ACME)
    while worker.events("weights_applied")[-1]["weights"] != {"own": 3.0}:
        await asyncio.sleep(0.02)
        assert time.monotonic() - began < 40, "never taken away"


async def test_an_outage_between_end_and_settlement_is_made_up_for(
    redis_url: str, client: Client, toy_job: ToyJob
) -> None:
    """The settlement is written with the end itself: whoever looks first after a crash applies it."""
    await limit(client, tpm=100_000)
    submitted = await client.submit(toy_job("x", 5).model_copy(update={"tenant": ACME}))
    await client.queue.cancel(submitted.job_id, "gone")
    assert (await usage(client)).in_flight == 1
    async with Client(RedisQueue(redis_url)) as other:
        assert await settle(other.queue, "scripted") == 1
        assert await keep_reservations(other.queue) == 0
    assert (await usage(client)).in_flight == 0
