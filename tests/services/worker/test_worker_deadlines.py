"""A deadline that cannot be met is told before the work, or the job goes on without it, as it asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headway.queueing.client import Client
from headway.queueing.events import EndReason
from headway.queueing.memory_queue import MemoryQueue

if TYPE_CHECKING:
    from tests.services.worker.conftest import Running, StartWorker

SLOW_PREFILL = "scripted:ms_per_step=5,us_per_token=1000"
LONG: dict[str, Any] = {
    "model": "scripted",
    "prompt": "x" * 3000,
    "sampling": {"max_tokens": 2, "temperature": 0},
}
"""Takes 3 s and a bit."""


async def learn(running: Running, client: Client) -> None:
    """Let the worker see prompts of several lengths until it trusts its predictions."""
    cost = running.host.engine._scheduler._cost
    for round_ in range(20):
        jobs = [
            client.run(model="scripted", prompt="y" * (5 + 20 * place + round_), sampling={"max_tokens": 12})
            for place in range(6)
        ]
        await asyncio.gather(*jobs)
        if round_ and cost.is_trusted:
            return
    raise AssertionError(f"the prediction error stays at {cost.error}")


async def test_a_job_that_cannot_end_in_time_is_refused_as_a_whole_with_the_numbers(
    start_worker: StartWorker, queue: MemoryQueue, client: Client
) -> None:
    async with start_worker(model=SLOW_PREFILL) as running:
        await learn(running, client)
        late: dict[str, Any] = LONG | {"deadline_seconds": 1.5, "sampling": {"max_tokens": 2, "n": 3}}
        result = await client.run(**late)
        assert result.reason is EndReason.DEADLINE
        assert [choice.finish_reason for choice in result.choices] == [EndReason.DEADLINE] * 3
        assert result.usage.completion_tokens == 0
        assert result.error is not None
        assert (result.error.code, result.error.param) == ("deadline_unreachable", "deadline_seconds")
        assert "its deadline is in 1." in result.error.message
        assert "allow more time, ask for less, or let it be demoted" in result.error.message
        assert await queue.dead_letters("scripted") == (), "it is no failure"
        assert (await client.status(result.job_id)).error == result.error


async def test_a_demotable_job_that_cannot_end_in_time_ends_late_and_whole(
    start_worker: StartWorker, client: Client
) -> None:
    async with start_worker(model=SLOW_PREFILL) as running:
        await learn(running, client)
        result = await client.run(**LONG, deadline_seconds=1.5, demotable=True)
        assert (result.reason, result.usage.completion_tokens) == (EndReason.LENGTH, 2)


async def test_a_demotable_job_outlives_its_deadline_in_the_queue_and_in_the_engine(
    start_worker: StartWorker, client: Client
) -> None:
    wish: dict[str, Any] = {"model": "scripted", "deadline_seconds": 0.05, "demotable": True}
    waited = await client.submit(**wish, prompt="hi", sampling={"max_tokens": 3})
    await asyncio.sleep(0.1)
    async with start_worker(model="scripted:ms_per_step=5"):
        assert (await client.result(waited.job_id)).reason is EndReason.LENGTH
        ran = await client.run(**wish, prompt="hi", sampling={"max_tokens": 40})
        assert (ran.reason, ran.usage.completion_tokens) == (EndReason.LENGTH, 40)
