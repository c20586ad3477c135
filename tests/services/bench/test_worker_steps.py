"""A worker's own records lie on the client's time axis, request by request."""

from __future__ import annotations

import json
import time

import pytest
from tests.services.worker.conftest import StartWorker

from headway.queueing.client import Client
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.messages import Job, SamplingParams
from headway.services.bench.worker_steps import records


async def test_steps_and_phases_of_a_real_worker_are_told_in_seconds_since_the_point_began(
    queue: MemoryQueue, start_worker: StartWorker
) -> None:
    client = Client(queue)
    async with start_worker(max_sequences=3) as running:
        await client.run(Job(model="scripted", prompt="before", sampling=SamplingParams(max_tokens=2)))
        began = time.time()
        job = Job(model="scripted", prompt="x" * 50, sampling=SamplingParams(max_tokens=5, ignore_eos=True))
        job_id = (await client.run(job)).job_id
        seconds = time.time() - began
        trace = json.loads(running.worker.render_trace())
    told = records(trace, began, seconds)
    assert told["settings"]["max_sequences"] == 3
    assert told["settings"]["policy"] == "fair"
    phases = told["phases"][job_id]
    assert [phase for phase, _, _ in phases][-2:] == ["prefill", "decode"]
    assert all(-0.02 <= start <= end <= seconds + 0.02 for _, start, end in phases)
    assert len(told["steps"]) == 5, "those of the job before are not part of it"
    assert told["steps"][0][3] >= 50, "the first one computed the prompt"
    starts = [step[0] for step in told["steps"]]
    assert starts == sorted(starts)


def test_a_worker_of_another_boot_is_placed_by_the_time_of_day() -> None:
    step = {"ph": "X", "name": "step 9", "pid": 1, "tid": 1, "ts": 5_000_000.0, "dur": 10_000.0}
    trace = {
        "otherData": {"clock_seconds": 6.0, "unix_seconds": 1000.0},
        "traceEvents": [step | {"args": {"requests": 2, "new_tokens": 7}}],
    }
    (placed,) = records(trace, 998.0, 10.0)["steps"]
    assert placed[:4] == pytest.approx([1.0, 0.01, 2, 7])
