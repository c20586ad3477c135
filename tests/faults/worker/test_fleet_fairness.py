"""Four real workers share a backlog fairly, also while they are killed. Counted in starts, not in seconds."""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any

import pytest
import redis

if TYPE_CHECKING:
    from tests.faults.worker.conftest import SpawnWorker, WorkerProcess

    from headway.queueing.client import Client

TAG = "{scripted:0}"
SEQUENCES = 4
IN_FLIGHT = 4 * (SEQUENCES + 1)
"""Each worker claims one job ahead of its engine's places."""


async def test_ten_thousand_jobs_of_one_tenant_hold_up_nobody_else(
    redis_url: str, client: Client, spawn_worker: SpawnWorker
) -> None:
    workers = await _fleet(redis_url, spawn_worker, "scripted:ms_per_step=4")
    with redis.Redis.from_url(redis_url, protocol=2) as raw:
        _post(raw, {f"A-{n}": _body("A", 20) for n in range(10_000)})
        for turn in range(24):
            if turn in {8, 16}:
                await workers.pop(0).kill()
                workers.append(_spawn(redis_url, spawn_worker, f"late-{turn}", "scripted:ms_per_step=4"))
            _post(raw, {f"{tenant}-{turn}": _body(tenant, 20) for tenant in "BCDEFGHIJ"[turn % 3 :: 3]})
            await asyncio.sleep(0.25)
        trickled = [f"{t}-{turn}" for turn in range(24) for t in "BCDEFGHIJ"[turn % 3 :: 3]]
        await asyncio.gather(*(client.result(f"scripted:0:{key}") for key in trickled))
        times = _times(raw, [*trickled, *(f"A-{n}" for n in range(10_000))])
    starts = sorted(started for _, started in times.values() if started)
    passed_by = {
        key: bisect_right(starts, times[key][1]) - bisect_left(starts, times[key][0]) - 1 for key in trickled
    }
    worst = max(passed_by, key=lambda key: passed_by[key])
    # Two service times are two starts in each of the fleet's places.
    assert passed_by[worst] <= 2 * IN_FLIGHT, worst
    assert sum(key.startswith("A-") and started > 0 for key, (_, started) in times.items()) > 100


@pytest.mark.parametrize("kills", [False, True])
async def test_shares_of_a_fleet_follow_the_weights(
    redis_url: str, client: Client, spawn_worker: SpawnWorker, kills: bool
) -> None:
    model = "scripted:ms_per_step=2"
    weights = {"a": 4.0, "b": 2.0, "c": 1.0}
    await client.queue.set_weights("scripted", weights)  # as the workers will: they may claim before they do
    for tenant, weight in weights.items():
        await client.queue.tenant_store.set(tenant, {"weight": weight})
    jobs = {
        f"{tenant}-{n}": _body(tenant, 5 + 7 * n % 11)
        for tenant, weight in weights.items()
        for n in range(int(200 * weight))
    }
    with redis.Redis.from_url(redis_url, protocol=2) as raw:
        _post(raw, jobs)  # before anybody works: who comes first would be served alone for a while
        workers = await _fleet(redis_url, spawn_worker, model)
        for ended in (300, 600, 900):
            while len(jobs) - sum((await client.queue.depth("scripted")).queued.values()) < ended:
                await asyncio.sleep(0.05)
            if kills and ended < 900:
                await workers.pop(0).kill()
                workers.append(_spawn(redis_url, spawn_worker, f"late-{ended}", model))
        times = _times(raw, list(jobs))
    served = dict.fromkeys(weights, 0)
    for key, (_, started) in times.items():
        # What was begun is what the queue gave out; its length is known beforehand.
        served[key[0]] += json.loads(jobs[key])["sampling"]["max_tokens"] if started else 0
    total = sum(served.values())
    for tenant, weight in weights.items():
        assert served[tenant] / total == pytest.approx(weight / 7, rel=0.05), served


async def _fleet(redis_url: str, spawn_worker: SpawnWorker, model: str) -> list[WorkerProcess]:
    workers = [_spawn(redis_url, spawn_worker, f"w-{n}", model) for n in range(4)]
    for worker in workers:
        await worker.logged("worker_ready")
    return workers


def _spawn(redis_url: str, spawn_worker: SpawnWorker, name: str, model: str) -> WorkerProcess:
    return spawn_worker(redis_url, name, model=model, max_sequences=SEQUENCES)


def _body(tenant: str, max_tokens: int) -> str:
    sampling = {"max_tokens": max_tokens, "temperature": 0}
    return json.dumps({"model": "scripted", "prompt": "x", "tenant": tenant, "sampling": sampling})


def _post(raw: redis.Redis, bodies: dict[str, str]) -> None:
    with raw.pipeline(transaction=False) as pipeline:
        for key, body in bodies.items():
            pipeline.fcall("headway_submit", 1, TAG, key, body)
        assert {reply[0] for reply in pipeline.execute()} == {b"created"}


def _times(raw: Any, keys: list[str]) -> dict[str, tuple[int, int]]:
    """When each job was created and first started; server milliseconds, 0 for not yet."""
    with raw.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.hmget(f"j:{TAG}:{key}", "created", "started")
        rows = [[int(value or 0) for value in row] for row in pipeline.execute()]
    return {key: (row[0], row[1]) for key, row in zip(keys, rows, strict=True)}
