"""A worker's own records lie on the client's time axis, request by request."""

from __future__ import annotations

import json
import time
from collections import deque
from typing import Any

import pytest
from tests.services.worker.conftest import StartWorker

from headway.queueing.client import Client
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.messages import Job, SamplingParams
from headway.services.bench.worker_steps import missing_steps, records


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
    assert told["from_seconds"] == 0.0
    assert missing_steps(told, 0.0) is None


async def test_steps_that_a_worker_no_longer_has_are_said_to_be_missing(
    queue: MemoryQueue, start_worker: StartWorker
) -> None:
    client = Client(queue)
    job = Job(model="scripted", prompt="x", sampling=SamplingParams(max_tokens=40, ignore_eos=True))
    async with start_worker() as running:
        timeline = running.host.engine.timeline
        timeline.steps = deque(maxlen=15)
        began = time.time()
        await client.run(job)
        seconds = time.time() - began
        trace = json.loads(running.worker.render_trace())
    told = records(trace, began, seconds)
    assert len(told["steps"]) == 15
    assert told["from_seconds"] == told["steps"][0][0] > 0.0
    assert f"known from {told['from_seconds']:.1f} s on" in (missing_steps(told, 0.0) or "")
    assert missing_steps(told, seconds) is None, "the warm-up is not measured"


def a_step(name: str) -> dict[str, Any]:
    """A trace of one step, ten seconds after the point began."""
    step = {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": 10e6, "dur": 10_000.0}
    return {
        "otherData": {"clock_seconds": 0.0, "unix_seconds": 1000.0},
        "traceEvents": [step | {"args": {"requests": 1, "new_tokens": 1}}],
    }


@pytest.mark.parametrize(("name", "known_from"), [("step 1", 0.0), ("step 9", 10.0)])
def test_before_a_workers_first_step_nothing_is_missing(name: str, known_from: float) -> None:
    assert records(a_step(name), 1000.0, 20.0)["from_seconds"] == known_from


def test_a_worker_that_never_took_a_step_misses_none() -> None:
    idle = records(a_step("step 9") | {"traceEvents": []}, 1000.0, 20.0)
    assert idle["from_seconds"] is None
    assert missing_steps(idle, 0.0) is None


def test_a_worker_of_another_boot_is_placed_by_the_time_of_day() -> None:
    step = {"ph": "X", "name": "step 9", "pid": 1, "tid": 1, "ts": 5_000_000.0, "dur": 10_000.0}
    trace = {
        "otherData": {"clock_seconds": 6.0, "unix_seconds": 1000.0},
        "traceEvents": [step | {"args": {"requests": 2, "new_tokens": 7}}],
    }
    (placed,) = records(trace, 998.0, 10.0)["steps"]
    assert placed[:4] == pytest.approx([1.0, 0.01, 2, 7])
