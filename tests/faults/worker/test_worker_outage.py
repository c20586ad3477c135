"""The queue's server goes away in the middle of answers: the worker goes on, the streams are whole after."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from tests.conftest import ANY

from headway.queueing.client import Client
from headway.queueing.redis_queue import RedisQueue

if TYPE_CHECKING:
    from tests.conftest import StartRedis
    from tests.faults.worker.conftest import Committed, Follow, SpawnWorker, ToyJob, ToyText


async def test_answers_survive_a_server_that_is_killed_and_started_again(
    start_redis: StartRedis,
    spawn_worker: SpawnWorker,
    toy_job: ToyJob,
    toy_text: ToyText,
    follow: Follow,
    committed: Committed,
) -> None:
    server = start_redis(ANY, "--appendonly", "yes", "--appendfsync", "always")
    async with Client(RedisQueue(server.url)) as client:
        worker = spawn_worker(server.url, "w-1", lease_seconds=5.0)
        await worker.logged("worker_ready")
        jobs = [(await client.submit(toy_job(f"outage {i}", 250))).job_id for i in range(3)]
        reading = [asyncio.create_task(follow(client, job_id)) for job_id in jobs]
        for job_id in jobs:
            await committed(client, job_id, 20)
        await asyncio.to_thread(server.kill)
        await worker.logged("queue_unavailable")
        await asyncio.to_thread(server.start)
        for i, read in enumerate(reading):
            assert (await read)[0] == toy_text(f"outage {i}", 250)
        assert [(await client.status(job_id)).attempts for job_id in jobs] == [0, 0, 0]
        assert worker.process.poll() is None


async def test_a_server_that_stops_answering_holds_jobs_at_their_bound_and_nothing_else(
    start_redis: StartRedis,
    spawn_worker: SpawnWorker,
    toy_job: ToyJob,
    toy_text: ToyText,
    follow: Follow,
    committed: Committed,
) -> None:
    server = start_redis()
    assert server.process is not None
    async with Client(RedisQueue(server.url)) as client:
        worker = spawn_worker(server.url, "w-1", lease_seconds=30.0, unacknowledged_tokens=50, metrics_port=0)
        await worker.logged("worker_ready")
        submitted = await client.submit(toy_job("black hole", 400))
        await committed(client, submitted.job_id, 20)
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            while 'headway_requests_held{model="scripted"} 1.0' not in (await worker.page("/metrics"))[1]:
                await asyncio.sleep(0.05)
            assert (await worker.page("/healthz"))[0] == 200, "the worker itself is well"
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        assert (await follow(client, submitted.job_id))[0] == toy_text("black hole", 400)
