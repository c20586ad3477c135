"""A run that knows of a worker has its settings and its steps, aligned; one that does not says so."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from tests.gateway.conftest import Rig
from tests.gateway.scripted_worker import ScriptedWorker
from tests.services.bench.conftest import Serve, quick
from tests.services.worker.conftest import Running, StartWorker

from headway.queueing.memory_queue import MemoryQueue
from headway.services.bench.bench_page import bench_page
from headway.services.bench.bench_table import table
from headway.services.bench.progress import Progress
from headway.services.bench.run import BenchRun
from headway.services.bench.settings import BenchSettings
from headway.services.worker_http import WorkerHttp

SLACK = 0.02
"""Between two clocks of one machine that are read one after the other."""
Beside = Callable[..., AbstractAsyncContextManager[tuple[str, str, Running]]]


@pytest.fixture
def beside(queue: MemoryQueue, start_worker: StartWorker) -> Beside:
    """Context manager: a gateway's address, its worker's metrics address, and the worker."""

    @asynccontextmanager
    async def made(**settings: Any) -> AsyncIterator[tuple[str, str, Running]]:
        rig = Rig(queue, ScriptedWorker(queue))
        async with start_worker(**settings) as running, rig.serve(rig.app(read_wait_seconds=5.0)) as url:
            await queue.heartbeat(running.worker.card(), ttl_seconds=60)
            pages = WorkerHttp(
                lambda: b"", lambda: (True, ""), lambda: (True, ""), trace=running.worker.render_trace
            )
            port = await pages.start("127.0.0.1", 0)
            try:
                yield url, f"http://127.0.0.1:{port}", running
            finally:
                await pages.close()

    return made


async def measure(settings: BenchSettings) -> dict[str, Any]:
    return await BenchRun(settings, Progress(io.StringIO())).run()


async def test_a_workers_steps_lie_where_its_clients_saw_their_tokens(beside: Beside) -> None:
    async with beside(model="scripted:ms_per_step=20") as (url, worker_url, _):
        result = await measure(quick(url, worker_urls=(worker_url,), duration=0.8))
    (told,) = result["workers"]
    assert (told["settings"]["policy"], told["url"]) == ("fair", worker_url)
    assert "worker: policy fair" in "\n".join(table(result))
    (point,) = result["points"]
    (record,) = point["workers"]
    assert record["from_seconds"] == 0.0
    assert len(record["steps"]) > 6
    rows = [dict(zip(result["request_fields"], row, strict=True)) for row in point["requests_sent"]]
    for row in rows:
        phases = record["phases"][row["job"]]
        (prefill,) = [phase for phase in phases if phase[0] == "prefill"]
        # The step that computed the prompt took 20 ms and was over when its reader had the first token.
        assert row["due"] - SLACK <= prefill[1] <= prefill[2] <= row["first"] + SLACK
        assert prefill[2] - prefill[1] >= 0.015
    page = bench_page(result)
    assert page.count('<rect class="prefill"') == len(rows)
    assert "tokens/step" in page
    assert not any("are not in this result" in note for note in result["notes"])


async def test_steps_that_were_pushed_out_before_the_point_ended_are_told_in_a_note(beside: Beside) -> None:
    async with beside() as (url, worker_url, running):
        running.host.engine.timeline.steps = deque(maxlen=10)
        result = await measure(quick(url, worker_urls=(worker_url,), duration=0.6, answer_tokens=20))
    (point,) = result["points"]
    since = point["workers"][0]["from_seconds"]
    assert since > 0.1
    assert f"20/s: the worker's steps are known from {since:.1f} s on" in "\n".join(result["notes"])
    assert f"Steps are known from {since:.1f} s on" in bench_page(result)


async def test_a_run_that_does_not_know_how_the_server_was_set_up_says_so(serve: Serve) -> None:
    async with serve() as url:
        result = await measure(quick(url, duration=0.3))
    assert "are not in this result: --worker URL" in "\n".join(table(result))
