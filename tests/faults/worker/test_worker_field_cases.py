"""What workers did wrong elsewhere, tried on ours; tests/field_cases.md has the list."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from tests.chaos.processes import Place
from tests.server_groups import free_port

from headway.queueing.client import Client
from headway.queueing.events import EndReason, JobState
from headway.queueing.redis_queue import RedisQueue

if TYPE_CHECKING:
    from tests.faults.worker.conftest import Committed, Follow, SpawnWorker, ToyJob, ToyText


async def test_workers_killed_while_they_claim_lose_no_job(
    redis_url: str,
    client: Client,
    spawn_worker: SpawnWorker,
    toy_job: ToyJob,
    toy_text: ToyText,
    follow: Follow,
) -> None:
    rng = random.Random(3)
    ids: list[str] = []
    for life in range(2):  # a third loss would be one too many
        worker = spawn_worker(redis_url, f"w-{life}")
        await worker.logged("worker_ready")
        for n in range(12):
            ids.append((await client.submit(toy_job(f"claimed {life} {n}", 30))).job_id)
            await asyncio.sleep(rng.uniform(0.0, 0.004))
        await worker.kill()
        await client.queue.expire_worker("scripted", worker.worker_id)
    spawn_worker(redis_url, "w-last")
    for at, job_id in enumerate(ids):
        assert (await follow(client, job_id))[0] == toy_text(f"claimed {at // 12} {at % 12}", 30)


async def test_a_prefill_longer_than_many_leases_keeps_its_job(
    redis_url: str, client: Client, spawn_worker: SpawnWorker, toy_job: ToyJob
) -> None:
    """One step of four seconds under a lease of 0.4 s: renewals do not wait for the engine."""
    model = "scripted:ms_per_step=1,us_per_token=20000"
    first = spawn_worker(redis_url, "w-1", model=model, lease_seconds=0.4)
    submitted = await client.submit(toy_job("long " * 40, 3))
    await first.logged("job_started")
    waiting = spawn_worker(redis_url, "w-2", lease_seconds=0.4)
    await client.result(submitted.job_id)
    await waiting.logged("worker_ready")
    status = await client.status(submitted.job_id)
    assert (status.state, status.attempts, status.worker) == (JobState.FINISHED, 0, "w-1")


async def test_a_token_stream_that_somebody_deletes_comes_back_whole(
    redis_url: str,
    client: Client,
    spawn_worker: SpawnWorker,
    toy_job: ToyJob,
    toy_text: ToyText,
    follow: Follow,
    committed: Committed,
) -> None:
    """The owner notices that acknowledged tokens are gone; the next one writes them again from the first."""
    worker = spawn_worker(redis_url, "w-1")
    await worker.logged("worker_ready")
    submitted = await client.submit(toy_job("deleted", 150))
    reading = asyncio.create_task(follow(client, submitted.job_id))
    await committed(client, submitted.job_id, 40)
    with redis.Redis.from_url(redis_url) as raw:
        raw.delete("o:{scripted:0}:" + submitted.job_id.rpartition(":")[2])
    assert (await reading)[0] == toy_text("deleted", 150), "who had read on sees no gap"
    assert (await follow(client, submitted.job_id))[0] == toy_text("deleted", 150), "who comes later sees all"


@pytest.fixture
def places(tmp_path: Path) -> Iterator[list[Place]]:
    made: list[Place] = []
    yield made
    for place in made:
        place.remove()


async def test_a_gateway_two_minutes_ahead_and_a_worker_two_behind_agree(
    redis_url: str, tmp_path: Path, places: list[Place], toy_job: ToyJob
) -> None:
    """Deadlines, leases and waits are the server's time: neither is late, neither expires early."""
    async with Client(RedisQueue(redis_url, clock=lambda: time.time() + 120)) as client:
        await client.queue.check_server()
        port = free_port()
        for kind, name, shift, settings in (
            ("gateway", "gateway", 120.0, {"port": port}),
            ("worker", "worker 0", -120.0, {"model": "scripted:ms_per_step=5", "lease_seconds": 1.0}),
        ):
            common: dict[str, Any] = {"redis_url": redis_url, "log_format": "json"}
            places.append(Place(kind, name, tmp_path, common | settings))
            places[-1].clock.shift(shift)
            places[-1].start()
        job = toy_job("what time is it", 100).model_copy(update={"deadline_seconds": 60.0})
        result = await client.run(job)
        assert result.reason is EndReason.LENGTH
        late = toy_job("never in time", 4000).model_copy(update={"deadline_seconds": 1.0})
        assert (await client.run(late)).reason is EndReason.DEADLINE
        status = await client.status(result.job_id)
        assert status.attempts == 0
        assert abs(status.finished_ms / 1000 - time.time()) < 60, "by the server's clock"
