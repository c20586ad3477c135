"""How a worker process starts, refuses to start, and stops."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from headway.queueing.client import Client
from headway.queueing.events import EndReason, JobState

if TYPE_CHECKING:
    from tests.faults.worker.conftest import Committed, Follow, SpawnWorker, ToyJob, ToyText


async def test_a_drained_worker_hands_over_and_says_farewell(
    redis_url: str,
    client: Client,
    spawn_worker: SpawnWorker,
    toy_job: ToyJob,
    toy_text: ToyText,
    follow: Follow,
    committed: Committed,
) -> None:
    first = spawn_worker(redis_url, "w-1", drain_seconds=1.0, lease_seconds=600)
    await first.logged("worker_ready")
    long = await client.submit(toy_job("long", 600))
    short = await client.submit(toy_job("short", 40))
    reading = asyncio.create_task(follow(client, long.job_id))
    await committed(client, short.job_id, 10)
    first.signal(signal.SIGTERM)
    assert await first.ended() == 0
    assert (await client.status(short.job_id)).reason is EndReason.LENGTH, "it could finish in time"
    status = await client.status(long.job_id)
    assert (status.state, status.attempts) == (JobState.QUEUED, 0)
    assert status.committed_tokens >= 10
    assert await client.queue.workers() == ()
    spawn_worker(redis_url, "w-2", model="scripted:ms_per_step=0")
    assert (await reading)[0] == toy_text("long", 600)


async def test_a_second_signal_ends_a_drain_and_still_hands_jobs_back(
    redis_url: str, client: Client, spawn_worker: SpawnWorker, toy_job: ToyJob, committed: Committed
) -> None:
    worker = spawn_worker(redis_url, "w-1", drain_seconds=60.0, lease_seconds=600)
    await worker.logged("worker_ready")
    submitted = await client.submit(toy_job("goes on for a while", 3000))
    await committed(client, submitted.job_id, 5)
    worker.signal(signal.SIGTERM)
    await worker.logged("draining")
    worker.signal(signal.SIGTERM)
    assert await worker.ended() == 1
    assert (await client.status(submitted.job_id)).state is JobState.QUEUED


async def test_a_worker_shows_its_state_to_the_fleet(
    redis_url: str, client: Client, spawn_worker: SpawnWorker, toy_job: ToyJob, committed: Committed
) -> None:
    worker = spawn_worker(redis_url, "w-1", drain_seconds=60.0, heartbeat_seconds=0.05)
    await worker.logged("worker_ready")
    submitted = await client.submit(toy_job("show", 3000))
    await committed(client, submitted.job_id, 5)

    async def shown(state: str, running: int) -> None:
        while not any(c.state == state and c.running == running for c in await client.queue.workers()):
            await asyncio.sleep(0.01)

    await shown("ready", 1)
    (card,) = await client.queue.workers()
    assert (card.worker_id, card.model, card.pid) == ("w-1", "scripted", worker.process.pid)
    assert card.kv_used_fraction > 0
    worker.signal(signal.SIGTERM)
    await shown("draining", 1)


async def test_without_a_server_it_says_so(spawn_worker: SpawnWorker) -> None:
    worker = spawn_worker("redis://:secret@127.0.0.1:1/0", "w-1", start_timeout_seconds=0.3)
    assert await worker.ended() == 3
    (line,) = worker.events("cannot_start")
    assert "redis://:***@127.0.0.1:1/0" in line["error"]
    assert "secret" not in worker.log_path.read_text()


async def test_a_model_that_is_not_there_is_named_and_not_retried(
    redis_url: str, spawn_worker: SpawnWorker
) -> None:
    worker = spawn_worker(redis_url, "w-1", model="no-such-model")
    assert await worker.ended() == 2
    (line,) = worker.events("model_not_loaded")
    assert "no-such-model" in line["error"]
    odd = spawn_worker(redis_url, "w-2", model="scripted:speed=9")
    assert await odd.ended() == 2
    assert "ms_per_step" in odd.events("cannot_start")[0]["hint"]


async def test_logs_name_the_job_and_never_its_words(
    redis_url: str, client: Client, spawn_worker: SpawnWorker, toy_job: ToyJob, toy_text: ToyText
) -> None:
    worker = spawn_worker(redis_url, "w-1", model="scripted:ms_per_step=0,fail_on=!", log_level="debug")
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    traced = toy_job("xylophone", 20).model_copy(
        update={"tenant": "acme", "traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    )
    submitted = await client.submit(traced)
    answer = (await client.result(submitted.job_id)).choices[0].text
    await client.run(toy_job("xylophone!", 20))
    await client.run(toy_job("xylophone" * 3000, 20))
    (line,) = [e for e in worker.events("job_finished") if e["job"] == submitted.job_id]
    assert (line["tenant"], line["worker"], line["trace"]) == ("acme", "w-1", trace)
    log = worker.log_path.read_text()
    assert "xylophone" not in log
    assert answer not in log
    assert answer == toy_text("xylophone", 20)
