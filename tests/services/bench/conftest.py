"""Answers on a virtual clock, and a service of a real gateway and a real worker of the toy model."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.gateway.conftest import Rig
from tests.gateway.scripted_worker import ScriptedWorker
from tests.services.worker.conftest import StartWorker, queue, start_worker

from headway.queueing.memory_queue import MemoryQueue
from headway.services.bench.answer import Answer, Outcome, Planned
from headway.services.bench.settings import BenchSettings
from headway.services.traffic import Demand

__all__ = ["queue", "start_worker"]  # fixtures of the worker's tests

QUICK = BenchSettings(
    warmup=0.1,
    duration=1.5,  # a machine that stands still for most of a second still leaves something to measure
    drain=5.0,
    rates=(20.0,),
    prompt_tokens=60,
    answer_tokens=6,
    max_lateness=5.0,  # two busy cores say nothing of the code
    max_client_cpu=1.0,
)


def answered(
    due: float,
    times: Sequence[float],
    *,
    outcome: Outcome = Outcome.FINISHED,
    ended: float | None = None,
    tenant: str = "default",
    priority: int = 1,
    told: int | None = None,
    **planned: Any,
) -> Answer:
    """A request due at ``due`` whose events came at these times."""
    demand = Demand(due, tenant, priority, 10, max(1, len(times)))
    answer = Answer(Planned(0, due, demand, **planned), sent=due, times=array("d", times))
    answer.told_answer_tokens = len(times) if told is None else told
    answer.end(outcome, ended if ended is not None else (times[-1] if times else due))
    return answer


Serve = Callable[..., AbstractAsyncContextManager[str]]


@pytest.fixture
def serve(queue: MemoryQueue, start_worker: StartWorker) -> Serve:
    """Context manager: the address of a gateway whose jobs a worker of the toy model runs."""

    @asynccontextmanager
    async def made(**settings: Any) -> AsyncIterator[str]:
        rig = Rig(queue, ScriptedWorker(queue))
        async with start_worker(**settings) as running, rig.serve(rig.app(read_wait_seconds=5.0)) as url:
            await queue.heartbeat(running.worker.card(), ttl_seconds=60)
            yield url

    return made


def quick(url: str, **changes: Any) -> BenchSettings:
    """Settings of a run that takes a second or two."""
    return replace(QUICK, url=url, **changes)
