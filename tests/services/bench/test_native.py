"""Headway's own queue is measured without HTTP, to the token."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace

import pytest
from tests.services.bench.conftest import answered, quick
from tests.services.worker.conftest import StartWorker

from headway.queueing.events import Cursor, EndEvent, EndReason, Usage
from headway.queueing.redis_queue import RedisQueue
from headway.services.bench.answer import Outcome
from headway.services.bench.native_target import _Prepared
from headway.services.bench.progress import Progress
from headway.services.bench.run import BenchRun
from headway.services.errors import ServiceError, UsageError


async def test_jobs_are_posted_and_followed_and_their_tokens_counted_exactly(
    redis_url: str, start_worker: StartWorker
) -> None:
    queue = RedisQueue(redis_url)
    async with start_worker(on=queue), asyncio.timeout(20):
        while not await queue.workers():  # its card is written beside its start
            await asyncio.sleep(0.01)
        settings = quick(redis_url, cancel_ratio=0.3, answer_tokens=20)
        result = await BenchRun(settings, Progress(io.StringIO())).run()
        with pytest.raises(UsageError, match="no worker serves other"):
            await BenchRun(quick(redis_url, model="other"), Progress(io.StringIO())).run()
    await queue.close()
    point = result["points"][0]
    assert result["target"]["model"] == "scripted"
    assert point["finished"] + point["cancelled"] == point["requests"] > point["cancelled"] > 0
    assert point["prompts"]["exact_share"] == 1.0
    tokens, outcome = (result["request_fields"].index(name) for name in ("tokens", "outcome"))
    assert {row[tokens] for row in point["requests_sent"] if row[outcome] == "finished"} == {20}


async def test_a_queue_without_workers_and_slow_readers_are_refused(redis_url: str) -> None:
    with pytest.raises(ServiceError, match="no worker is ready"):
        await BenchRun(quick(redis_url), Progress(io.StringIO())).run()
    with pytest.raises(UsageError, match="slow readers read HTTP"):
        await BenchRun(quick(redis_url, slow_ratio=0.1), Progress(io.StringIO())).run()


@pytest.mark.parametrize(
    ("times", "outcome", "status"), [((), Outcome.REFUSED, 504), ((0.4,), Outcome.FAILED, 200)]
)
def test_a_job_that_a_worker_gives_up_for_its_deadline_is_told_as_the_gateway_tells_it(
    times: tuple[float, ...], outcome: Outcome, status: int
) -> None:
    """Without a token it was refused; cut off in the middle of its answer it failed."""
    answer = replace(answered(0.0, times), outcome=None, status=200)
    end = EndEvent(Cursor(len(times), 1), EndReason.DEADLINE, (), Usage(10, len(times)))
    _Prepared._end(end, answer, 1.0)
    assert (answer.outcome, answer.status, answer.ended) == (outcome, status, 1.0)
