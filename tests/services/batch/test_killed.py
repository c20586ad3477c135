"""Real Celery workers are killed at random moments: every line has exactly one result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from random import Random

import httpx
import pytest
from tests.gateway.scripted_worker import Script, ScriptedWorker
from tests.services.batch.batch_fleet import BatchFleet
from tests.services.batch.conftest import Service, chat_line

from headway.queueing.redis_queue import RedisQueue
from headway.services.batch.storage import Storage

LINES = 200
KILLS = 2


@pytest.fixture
async def fleet(redis_url: str, tmp_path: Path) -> AsyncGenerator[BatchFleet]:
    made = BatchFleet(redis_url, tmp_path)
    queue = RedisQueue(redis_url)
    worker = ScriptedWorker(queue, Script(pace=lambda: asyncio.sleep(0.05)))
    running = asyncio.create_task(worker.run())
    await worker.is_up.wait()
    yield made
    await asyncio.to_thread(made.close)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await queue.close()


async def test_killed_batch_workers_neither_lose_nor_double_a_line(fleet: BatchFleet) -> None:
    rng = Random()
    queue = RedisQueue(fleet.redis_url)
    service = Service(queue, Storage(fleet.files))
    ids = {f"line-{n}" for n in range(LINES)}
    try:
        batch_id = await service.post(*(chat_line(each, "x" * 200) for each in sorted(ids)))
        for _ in range(KILLS):
            process = await asyncio.to_thread(fleet.start_batch_worker)
            await asyncio.sleep(rng.uniform(0.05, 1.2))
            await asyncio.to_thread(fleet.kill, process)
            # The dead one's turn lapses in seconds; here nobody waits for that.
            for what in (f"run:{batch_id}", f"asked:{batch_id}"):
                await queue.batch_store._commands.call("DEL", f"turn:{{batch}}:{what}")
        last = await asyncio.to_thread(fleet.start_batch_worker)
        async with asyncio.timeout(60):
            while await queue.batch_store.open_batches():
                await asyncio.sleep(0.1)
        output, errors = await service.results(batch_id)
        assert output.keys() == ids
        assert errors == {}
        assert (await service.batch(batch_id)).tally.completed == LINES
        assert (fleet.folder / "heartbeat").exists()
        told = (await asyncio.to_thread(httpx.get, fleet.metrics_url())).text
        assert 'headway_batch_lines_total{outcome="completed"}' in told
        ready = await asyncio.to_thread(httpx.get, fleet.metrics_url().replace("/metrics", "/readyz"))
        assert ready.text == "ready\n"
        last.terminate()
        assert await asyncio.to_thread(last.wait, 15) == 0, "it stops in order"
    finally:
        await queue.close()
