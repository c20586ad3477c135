"""A worker that plans one step ahead keeps every promise of one that does not."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from headway.engine.engine import Engine
from headway.engine.limits import StepLimits
from headway.engine.policy import Fcfs
from headway.engine.scripted import ByteTokenizer, ScriptedRunner
from headway.engine.values import RequestSpec, Sampling
from headway.queueing.client import Client
from headway.queueing.events import EndReason
from headway.services.children import worker_command
from headway.services.engine_thread import EngineThread
from headway.services.settings import UpSettings
from headway.services.worker_core import EngineDiedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services.worker.conftest import JobMaker, StartWorker, ToyText


@pytest.fixture(autouse=True)
def switch_interval() -> Iterator[None]:
    """A worker that looks ahead sets it for its process, which is the tests' here."""
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


async def test_answers_are_the_models_own(
    start_worker: StartWorker, client: Client, job: JobMaker, toy_text: ToyText
) -> None:
    async with start_worker(looks_ahead=True, max_sequences=4):
        lengths = {f"prompt {i}": 5 + 3 * i for i in range(9)}
        submitted = [(await client.submit(job(*entry))).job_id for entry in lengths.items()]
        for (prompt, length), job_id in zip(lengths.items(), submitted, strict=True):
            assert (await client.result(job_id)).choices[0].text == toy_text(prompt, length)


async def test_a_drain_in_the_middle_loses_no_token(
    start_worker: StartWorker, client: Client, job: JobMaker, toy_text: ToyText
) -> None:
    submitted = [(await client.submit(job(f"long {i}", 120))).job_id for i in range(3)]
    for _ in range(2):
        async with start_worker(looks_ahead=True, drain_seconds=0.0) as running:
            while running.host.engine.load.steps < 20:
                await asyncio.sleep(0.002)
            await running.drained()
    async with start_worker(looks_ahead=True):
        for i, job_id in enumerate(submitted):
            result = await client.result(job_id)
            assert result.choices[0].text == toy_text(f"long {i}", 120)
            assert result.reason is EndReason.LENGTH


async def test_a_device_that_breaks_on_its_own_thread_ends_the_worker(
    start_worker: StartWorker, client: Client, job: JobMaker
) -> None:
    async with start_worker(model="scripted:ms_per_step=1,break_on=!", looks_ahead=True) as running:
        await client.submit(job("bad!"))
        with pytest.raises(ExceptionGroup) as died:
            await running.task
        assert died.group_contains(EngineDiedError)


def test_a_device_that_hangs_does_not_hang_whoever_stops_the_engine() -> None:
    hanging, device = threading.Event(), threading.Event()

    def hang(seconds: float) -> None:
        del seconds
        hanging.set()
        device.wait()

    engine = Engine(
        ScriptedRunner(sleep=hang), ByteTokenizer(), limits=StepLimits(), policy=Fcfs(), looks_ahead=True
    )
    thread = EngineThread(
        engine,
        notify=lambda: None,
        observe_step=lambda _: None,
        clock=time.monotonic,
        unacknowledged_tokens=100,
    )
    thread.start()
    thread.add("job", [RequestSpec("job", 0, (1, 2), Sampling(), 5)])
    assert hanging.wait(10.0)
    assert not thread.stop(timeout_seconds=0.05)
    device.set()
    assert thread.stop(timeout_seconds=10.0)
    assert thread.failure is None


@pytest.mark.parametrize(("looks_ahead", "option"), [(True, "--look-ahead"), (False, "--no-look-ahead")])
def test_up_hands_the_choice_to_its_workers(tmp_path: Path, looks_ahead: bool, option: str) -> None:
    assert option in worker_command(UpSettings(state_dir=tmp_path, looks_ahead=looks_ahead), "w-1", 0)
