"""A server that takes no writes for a while: answers under way stand at their bound, then come whole."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import redis

from headway.queueing.client import Client
from headway.queueing.errors import QueueUnavailableError
from headway.queueing.events import EndReason
from headway.queueing.redis_queue import RedisQueue

if TYPE_CHECKING:
    from tests.conftest import StartRedis
    from tests.faults.worker.conftest import Committed, Follow, SpawnWorker, ToyJob, ToyText

HELD = 'headway_requests_held{model="scripted"} 1.0'
TOKENS = 400


@pytest.mark.parametrize("kind", ["redis7", "valkey9"])
async def test_answers_stand_at_their_bound_while_writes_are_refused_and_go_on_after(
    kind: str,
    start_redis: StartRedis,
    spawn_worker: SpawnWorker,
    toy_job: ToyJob,
    toy_text: ToyText,
    follow: Follow,
    committed: Committed,
) -> None:
    """As when a disk is full or the replicas are gone: the server answers, and takes nothing."""
    server = start_redis(kind)
    async with Client(RedisQueue(server.url)) as client:
        worker = spawn_worker(server.url, "w-1", lease_seconds=30.0, unacknowledged_tokens=50, metrics_port=0)
        await worker.logged("worker_ready")
        submitted = await client.submit(toy_job("refused", TOKENS))
        await committed(client, submitted.job_id, 20)
        server.command("CONFIG", "SET", "min-replicas-to-write", "1")
        with pytest.raises(QueueUnavailableError) as refused:
            await client.submit(toy_job("later", 5))
        assert refused.value.retry_after_seconds >= 1
        while HELD not in (await worker.page("/metrics"))[1]:
            await asyncio.sleep(0.05)
        written = (await client.status(submitted.job_id)).committed_tokens
        await asyncio.sleep(0.3)
        assert (await client.status(submitted.job_id)).committed_tokens == written < TOKENS
        server.command("CONFIG", "SET", "min-replicas-to-write", "0")
        assert (await follow(client, submitted.job_id))[0] == toy_text("refused", TOKENS)
        assert (await follow(client, (await client.submit(toy_job("later", 5))).job_id))[0] == toy_text(
            "later", 5
        )


@pytest.mark.parametrize("kind", ["redis7", "valkey9"])
async def test_a_full_server_refuses_new_jobs_and_finishes_those_it_has(
    kind: str,
    start_redis: StartRedis,
    spawn_worker: SpawnWorker,
    toy_job: ToyJob,
    toy_text: ToyText,
    follow: Follow,
    committed: Committed,
) -> None:
    """Running and waiting ones: holding them would hold the memory that their end gives back."""
    server = start_redis(kind)
    async with Client(RedisQueue(server.url)) as client:
        worker = spawn_worker(server.url, "w-1", max_sequences=2)
        await worker.logged("worker_ready")
        jobs = [(await client.submit(toy_job(f"full {n}", 120))).job_id for n in range(8)]
        await committed(client, jobs[0], 20)
        server.command("CONFIG", "SET", "maxmemory", "1")
        for _ in range(20):
            with pytest.raises(QueueUnavailableError, match="maxmemory"):
                await client.submit(toy_job("refused", 5))
        assert server.command("KEYS", "j:*").count(b"j:{") == len(jobs), "nothing of a refused one"
        for n, job_id in enumerate(jobs):
            assert (await follow(client, job_id))[0] == toy_text(f"full {n}", 120)
        server.command("CONFIG", "SET", "maxmemory", "0")
        assert (await follow(client, (await client.submit(toy_job("again", 5))).job_id))[0] == toy_text(
            "again", 5
        )


@pytest.mark.parametrize("logprobs", [None, 5])
async def test_a_token_stream_ends_at_its_bound_and_says_length(
    redis_url: str,
    client: Client,
    spawn_worker: SpawnWorker,
    toy_job: ToyJob,
    toy_text: ToyText,
    follow: Follow,
    logprobs: int | None,
) -> None:
    bound = 20_000
    worker = spawn_worker(redis_url, "w-1", model="scripted:ms_per_step=1", max_stream_bytes=bound)
    await worker.logged("worker_ready")
    submitted = await client.submit(toy_job("endless", 1900, logprobs=logprobs))
    text, end = await follow(client, submitted.job_id)
    assert end.reason is EndReason.LENGTH
    assert [choice.finish_reason for choice in end.choices] == [EndReason.LENGTH]
    assert toy_text("endless", 1900).startswith(text)
    assert 0 < len(text) < 1900
    with redis.Redis.from_url(redis_url, protocol=2) as raw:
        taken = raw.memory_usage(f"o:{{scripted:0}}:{submitted.job_id.rpartition(':')[2]}", samples=0)
    assert bound / 3 < taken < bound * 1.3 + 8192, "what we count is about what the server keeps"
    assert (await client.status(submitted.job_id)).attempts == 0
