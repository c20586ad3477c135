"""The engine's thread sleeps until somebody has something to say to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from headway.engine.engine import Engine
from headway.engine.errors import DeadlineError
from headway.engine.limits import StepLimits
from headway.engine.policy import Fcfs
from headway.engine.scripted import ByteTokenizer, ScriptedRunner
from headway.engine.values import FinishReason, RequestSpec, Sampling
from headway.queueing.client import Client
from headway.queueing.memory_queue import MemoryQueue
from headway.services.engine_thread import EngineThread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.services.worker.conftest import JobMaker, StartWorker


def test_a_word_about_nothing_is_not_posted() -> None:
    engine = Engine(ScriptedRunner(), ByteTokenizer(), limits=StepLimits(), policy=Fcfs())
    thread = EngineThread(
        engine,
        notify=lambda: None,
        observe_step=lambda _: None,
        clock=time.monotonic,
        unacknowledged_tokens=1,
    )
    thread.acknowledge([])
    thread.cancel([])
    assert not thread._inbox
    thread.acknowledge([("job", 1)])
    assert len(thread._inbox) == 1


class SecondTooLate(Engine):
    """Whose first choice can be in time, and no other."""

    def add(self, spec: RequestSpec, now: float | None = None) -> None:
        if not spec.request_id.endswith("#0"):
            raise DeadlineError("too late")
        super().add(spec, now)


def test_a_job_of_which_a_later_choice_is_out_of_reach_ends_as_a_whole() -> None:
    engine = SecondTooLate(ScriptedRunner(), ByteTokenizer(), limits=StepLimits(), policy=Fcfs())
    thread = EngineThread(
        engine,
        notify=lambda: None,
        observe_step=lambda _: None,
        clock=lambda: 0.0,
        unacknowledged_tokens=1,
    )
    thread.add("job", [RequestSpec(f"job#{choice}", 1, (1,), Sampling(), 9) for choice in range(3)])
    thread._iterate()
    ended = {output.key.request_id: output for output in thread.take()}
    assert {name: output.finish_reason for name, output in ended.items()} == dict.fromkeys(
        ("job#0", "job#1", "job#2"), FinishReason.DEADLINE
    )
    assert ended["job#1"].error_message == "too late"
    assert not engine.has_work


async def test_only_tokens_that_were_written_are_acknowledged(
    start_worker: StartWorker,
    queue: MemoryQueue,
    client: Client,
    job: JobMaker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Sequence[tuple[str, int]]] = []
    acknowledge = EngineThread.acknowledge

    def listen(self: EngineThread, tokens: Sequence[tuple[str, int]]) -> None:
        told.append(tuple(tokens))
        acknowledge(self, tokens)

    monkeypatch.setattr(EngineThread, "acknowledge", listen)
    async with start_worker():
        result = await client.run(job("count me", 30))
    tokens = [count for word in told for _, count in word]
    assert all(tokens)
    assert 0 < sum(tokens) <= result.usage.completion_tokens, "the last ones travel with the end"
