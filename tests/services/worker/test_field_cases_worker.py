"""What users of other engines ran into, as tests of a whole worker; numbers as in ``field_cases.md``."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from headway.queueing.client import Client
from headway.queueing.events import EndReason
from headway.queueing.memory_queue import MemoryQueue

if TYPE_CHECKING:
    from tests.services.worker.conftest import JobMaker, StartWorker, ToyText


async def test_case_28_nothing_that_happens_to_one_job_ends_the_worker(
    start_worker: StartWorker, client: Client, job: JobMaker, toy_text: ToyText
) -> None:
    rng = random.Random(7)
    async with start_worker(model="scripted:ms_per_step=1,fail_on=!", max_sequences=4) as running:
        good = [(await client.submit(job(f"fine {place}", 25))).job_id for place in range(6)]
        others: list[str] = []
        for place in range(40):
            kind = rng.choice(("cancel at once", "cancel later", "fails!", "x" * 5000))
            others.append((await client.submit(job(f"{kind} {place}", 40, n=rng.randint(1, 3)))).job_id)
            if "cancel" in kind:
                await asyncio.sleep(rng.uniform(0.0, 0.02) if "later" in kind else 0.0)
                await client.cancel(others[-1])
                await client.cancel(others[-1])
        ends = {(await client.result(job_id)).reason for job_id in others}
        assert ends == {EndReason.CANCELLED, EndReason.ERROR}
        for place, job_id in enumerate(good):
            assert (await client.result(job_id)).choices[0].text == toy_text(f"fine {place}", 25)
        assert not running.task.done()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"pattern": "(("}}}, "response_format"),
        ({"sampling": {"guided_regex": "(("}}, "sampling.guided_regex"),
        ({"sampling": {"stop": [""]}}, "sampling.stop.0"),
    ],
)
async def test_case_29_what_a_worker_cannot_serve_ends_alone_also_past_the_gateway(
    start_worker: StartWorker,
    queue: MemoryQueue,
    client: Client,
    job: JobMaker,
    toy_text: ToyText,
    fields: dict[str, Any],
    param: str,
) -> None:
    async with start_worker():
        beside = await client.submit(job("beside it", 60))
        body = orjson.dumps({"model": "scripted", "prompt": "x"} | fields)
        bad = await client.result((await queue.submit_body("scripted", body)).job_id)
        assert bad.error is not None
        assert (bad.error.code, bad.error.param) == ("invalid_job", param)
        assert (await client.result(beside.job_id)).choices[0].text == toy_text("beside it", 60)
