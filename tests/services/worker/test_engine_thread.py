"""The engine's thread sleeps until somebody has something to say to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from headway.engine.engine import Engine
from headway.engine.limits import StepLimits
from headway.engine.policy import Fcfs
from headway.engine.scripted import ByteTokenizer, ScriptedRunner
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
