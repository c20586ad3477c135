"""A worker that guesses keeps every promise of one that does not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headway.engine import acceptance
from headway.queueing.client import Client
from headway.services.children import worker_command
from headway.services.errors import UsageError
from headway.services.model_host import build_engine
from headway.services.settings import UpSettings, WorkerSettings

if TYPE_CHECKING:
    from tests.services.worker.conftest import JobMaker, StartWorker, ToyText

GUESSING = {"speculation": "prompt-lookup", "draft_tokens": 6}


@pytest.fixture(autouse=True)
def full_of_hope(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy model hardly ever repeats itself, which a worker notices: here it keeps guessing."""
    monkeypatch.setattr(acceptance, "PRIOR_TRIALS", 1e9)
    monkeypatch.setattr(acceptance, "FIRST_RATES", (0.9,) * acceptance.LENGTHS)


async def test_answers_are_the_models_own_although_many_guesses_are_wrong(
    start_worker: StartWorker, client: Client, job: JobMaker, toy_text: ToyText
) -> None:
    async with start_worker(**GUESSING, max_sequences=4) as running:
        lengths = {f"prompt {i}": 150 + 3 * i for i in range(6)}
        submitted = [(await client.submit(job(*entry))).job_id for entry in lengths.items()]
        for (prompt, length), job_id in zip(lengths.items(), submitted, strict=True):
            result = await client.result(job_id)
            assert result.choices[0].text == toy_text(prompt, length)
            assert result.usage.completion_tokens == length
        load = running.host.engine.load.extra
        assert load["draft_tokens"] > load["draft_tokens_right"] > 0


async def test_a_drain_in_the_middle_loses_no_token(
    start_worker: StartWorker, client: Client, job: JobMaker, toy_text: ToyText
) -> None:
    submitted = [(await client.submit(job(f"long {i}", 120))).job_id for i in range(3)]
    for _ in range(2):
        async with start_worker(**GUESSING, drain_seconds=0.0) as running:
            while running.host.engine.load.steps < 20:
                await asyncio.sleep(0.002)
            await running.drained()
    async with start_worker(**GUESSING):
        for i, job_id in enumerate(submitted):
            assert (await client.result(job_id)).choices[0].text == toy_text(f"long {i}", 120)


def test_a_step_cannot_be_planned_before_the_tokens_are_known_that_guesses_follow() -> None:
    settings = WorkerSettings(model="scripted", speculation="prompt-lookup", looks_ahead=True)
    with pytest.raises(UsageError, match="--look-ahead plans a step before"):
        build_engine(settings)


def test_up_hands_both_options_to_its_workers(tmp_path: Path) -> None:
    settings = UpSettings(state_dir=tmp_path, speculation="prompt-lookup", draft_tokens=5)
    command = worker_command(settings, "w-1", 0)
    assert command[command.index("--speculation") + 1] == "prompt-lookup"
    assert command[command.index("--draft-tokens") + 1] == "5"
