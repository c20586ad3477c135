"""``--deterministic``: handed from ``up`` to its workers; who cannot keep the promise does not start."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import missing
from tests.services.worker.conftest import JobMaker, ReadAll, StartWorker

from headway.engine.errors import ModelError
from headway.engine.model_source import resolve_model
from headway.queueing.client import Client
from headway.services.children import worker_command
from headway.services.model_host import build_engine
from headway.services.settings import UpSettings, WorkerSettings


@pytest.mark.parametrize(
    ("is_deterministic", "option"), [(True, "--deterministic"), (False, "--no-deterministic")]
)
def test_up_hands_the_choice_to_its_workers(tmp_path: Path, is_deterministic: bool, option: str) -> None:
    settings = UpSettings(state_dir=tmp_path, is_deterministic=is_deterministic)
    assert option in worker_command(settings, "w-1", 0)


async def test_the_toy_model_keeps_the_promise_by_nature(
    start_worker: StartWorker, client: Client, job: JobMaker, read_all: ReadAll
) -> None:
    async with start_worker(is_deterministic=True):
        asked = job("hello", 3)
        submitted = await client.submit(asked)
        _, end = await read_all(client, submitted.job_id)
        assert end.reason == "length"


def test_a_worker_on_torchs_kernels_says_why_it_does_not_start() -> None:
    try:
        resolve_model("smollm2-135m", hub=False)
    except ModelError as error:
        missing(f"the model smollm2-135m ({error})")
    settings = WorkerSettings(cpu_kernels="torch", is_deterministic=True, kv_cache_bytes=64 << 20)
    with pytest.raises(
        ModelError, match=r"--deterministic needs the native CPU kernels.*torch was asked for"
    ):
        build_engine(settings)
