"""Workers that are killed, frozen, hung or broken: no accepted job is lost, no token is seen twice."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from headway.queueing.client import Client
from headway.queueing.events import EndReason, JobState
from headway.queueing.redis_queue import RedisQueue

if TYPE_CHECKING:
    from tests.faults.worker.conftest import Committed, Follow, SpawnWorker, ToyJob, ToyText


async def test_a_killed_workers_answer_goes_on_where_it_stopped(
    each_redis_url: str,
    spawn_worker: SpawnWorker,
    toy_job: ToyJob,
    toy_text: ToyText,
    follow: Follow,
    committed: Committed,
) -> None:
    async with Client(RedisQueue(each_redis_url)) as client:
        first = spawn_worker(each_redis_url, "w-1")
        await first.logged("worker_ready")
        submitted = await client.submit(toy_job("survive", 150))
        reading = asyncio.create_task(follow(client, submitted.job_id))
        await committed(client, submitted.job_id, 20)
        await first.kill()
        seen = (await client.status(submitted.job_id)).committed_tokens
        spawn_worker(each_redis_url, "w-2")
        text, end = await reading
        assert text == toy_text("survive", 150)
        assert seen < 150, "it was killed in the middle"
        assert (end.reason, end.usage.completion_tokens) == (EndReason.LENGTH, 150)
        assert (await client.status(submitted.job_id)).attempts == 1


async def test_a_frozen_worker_that_wakes_up_after_its_lease_is_not_heard(
    redis_url: str,
    client: Client,
    spawn_worker: SpawnWorker,
    toy_job: ToyJob,
    toy_text: ToyText,
    follow: Follow,
    committed: Committed,
) -> None:
    zombie = spawn_worker(redis_url, "zombie")
    await zombie.logged("worker_ready")
    submitted = await client.submit(toy_job("who speaks", 300))
    await committed(client, submitted.job_id, 20)
    zombie.signal(signal.SIGSTOP)
    heir = spawn_worker(redis_url, "heir")
    while (await client.status(submitted.job_id)).worker != "heir":
        await asyncio.sleep(0.02)
    zombie.signal(signal.SIGCONT)
    await zombie.logged("claim_lost")
    text, _ = await follow(client, submitted.job_id)
    assert text == toy_text("who speaks", 300)
    await heir.logged("job_finished")  # which it writes once the end is out
    assert zombie.events("job_finished") == []
    assert zombie.process.poll() is None, "it lives on and takes other jobs"


async def test_a_job_that_kills_its_workers_is_given_up_and_takes_no_other_with_it(
    redis_url: str, client: Client, spawn_worker: SpawnWorker, toy_job: ToyJob, toy_text: ToyText
) -> None:
    poison = await client.submit(toy_job("poison!", 20))
    others = [(await client.submit(toy_job(f"fine {i}", 80))).job_id for i in range(4)]
    crashes = 0
    while (await client.status(poison.job_id)).state is not JobState.FINISHED:
        worker = spawn_worker(redis_url, f"w-{crashes}", model="scripted:ms_per_step=5,kill_on=!")
        ended = asyncio.create_task(worker.ended())
        given_up = asyncio.create_task(client.result(poison.job_id))
        await asyncio.wait((ended, given_up), return_when=asyncio.FIRST_COMPLETED)
        given_up.cancel()
        if ended.done():
            assert ended.result() == -signal.SIGKILL
            await client.queue.expire_worker("scripted", worker.worker_id)  # what the supervisor does
            crashes += 1
    assert crashes == 3
    result = await client.result(poison.job_id)
    assert result.reason is EndReason.ERROR
    assert [letter.job_id for letter in await client.queue.dead_letters("scripted")] == [poison.job_id]
    spawn_worker(redis_url, "w-last", model="scripted:ms_per_step=5,kill_on=!")
    for i, job_id in enumerate(others):
        answer = await client.result(job_id)
        assert answer.choices[0].text == toy_text(f"fine {i}", 80)


async def test_a_hung_step_shows_and_then_ends_the_process(
    redis_url: str, client: Client, spawn_worker: SpawnWorker, toy_job: ToyJob
) -> None:
    worker = spawn_worker(
        redis_url, "w-1", model="scripted:hang_on=!", hung_after_seconds=2.0, metrics_port=0, lease_seconds=30
    )
    await worker.logged("worker_ready")
    assert (await worker.page("/healthz"))[0] == 200
    assert (await worker.page("/readyz"))[0] == 200
    submitted = await client.submit(toy_job("stand still!", 5))
    while (answer := await worker.page("/healthz"))[0] == 200:
        await asyncio.sleep(0.05)
    assert answer[0] == 503
    assert await worker.ended() == 70
    assert worker.events("engine_hung")
    assert (await client.status(submitted.job_id)).state is JobState.RUNNING
    assert await client.queue.expire_worker("scripted", "w-1") == 1


async def test_a_broken_device_hands_its_jobs_on_without_waiting_for_leases(
    redis_url: str, client: Client, spawn_worker: SpawnWorker, toy_job: ToyJob, toy_text: ToyText
) -> None:
    broken = spawn_worker(redis_url, "broken", model="scripted:ms_per_step=5,break_on=!", lease_seconds=600)
    await broken.logged("worker_ready")
    submitted = await client.submit(toy_job("ouch!", 20))
    assert await broken.ended() == 1
    assert "BrokenDeviceError" in broken.log_path.read_text()
    status = await client.status(submitted.job_id)
    assert (status.state, status.attempts) == (JobState.QUEUED, 1)
    spawn_worker(redis_url, "whole")
    assert (await client.result(submitted.job_id)).choices[0].text == toy_text("ouch!", 20)
