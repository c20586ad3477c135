"""What is kept of a job beyond its record: its body until it is forgotten, and its part of a day's usage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from tests.contract.conftest import MODEL

from headway.queueing.claims import Fenced
from headway.queueing.day_usage import DayUsage
from headway.queueing.errors import InvalidJobError, UnknownJobError
from headway.queueing.events import START, EndReason
from headway.queueing.messages import Job

if TYPE_CHECKING:
    from tests.contract.conftest import Bench


async def days_of(bench: Bench, job_id: str) -> list[DayUsage]:
    """The usage of the day on which a job ended, and of the one after it."""
    ended = (await bench.queue.status(job_id)).finished_ms / 1000
    today = datetime.fromtimestamp(ended, UTC).date()
    days = [today, today + timedelta(days=1)]
    rows = list(await bench.queue.usage(MODEL, days))
    for row in rows:  # one tenant's are the same
        assert row in await bench.queue.usage(MODEL, days, row.tenant)
    assert await bench.queue.usage(MODEL, days, "nobody") == ()
    return rows


def shown(rows: list[DayUsage]) -> dict[str, tuple[int, int, int]]:
    return {row.tenant: (row.jobs, row.prompt_tokens, row.completion_tokens) for row in rows}


async def test_a_job_is_given_back_as_it_was_accepted(bench: Bench) -> None:
    job_id = await bench.submit("k", messages=[{"role": "user", "content": "Zürich?"}], notes={"a": True})
    wanted = Job.model_validate(
        {"model": MODEL, "messages": [{"role": "user", "content": "Zürich?"}], "notes": {"a": True}}
    )
    assert await bench.queue.job(job_id) == wanted
    await bench.finish(await bench.claim_one(), bench.token(1))
    assert await bench.queue.job(job_id) == wanted, "also after its end"
    with pytest.raises(UnknownJobError):
        await bench.queue.job("org--tiny:0:other")


async def test_a_raw_producers_body_that_is_no_job_says_so(bench: Bench) -> None:
    job_id = await bench.submit_body(b'{"model":"org/tiny","prompt":7}', "k")
    with pytest.raises(InvalidJobError):
        await bench.queue.job(job_id)


async def test_nothing_is_left_of_a_job_that_is_forgotten(bench: Bench) -> None:
    job_id = await bench.submit("k", idempotency_key="once")
    with pytest.raises(InvalidJobError, match="not ended"):
        await bench.queue.forget(job_id)
    claim = await bench.claim_one()
    with pytest.raises(InvalidJobError, match="not ended"):
        await bench.queue.forget(job_id)
    await bench.finish(claim, bench.token(1))
    await bench.queue.forget(job_id)
    for ask in (
        bench.queue.status(job_id),
        bench.queue.job(job_id),
        bench.queue.result(job_id),
        bench.queue.read(job_id, START, wait_seconds=0),
        bench.queue.forget(job_id),
    ):
        with pytest.raises(UnknownJobError):
            await ask
    repeat = await bench.queue.submit(Job(model=MODEL, prompt="once upon", idempotency_key="once"))
    assert (repeat.job_id, repeat.created) == (job_id, False), "its key still keeps it from running again"
    assert not await bench.claim()


async def test_each_end_counts_once_for_its_tenant_and_day(bench: Bench) -> None:
    bench.make(max_attempts=1)
    for key, tenant in (("k1", "acme"), ("k2", "acme"), ("k3", "other")):
        await bench.submit(key, tenant=tenant)
    for claim in await bench.claim():
        ending = bench.ending(claim, bench.token(1), bench.token(2))
        assert await bench.queue.finish([ending]) == (Fenced.OK,)
        assert await bench.queue.finish([ending]) == (Fenced.OK,), "a repeat, whose first answer was lost"
    rows = await days_of(bench, "org--tiny:0:k1")
    assert shown(rows) == {"acme": (2, 4, 4), "other": (1, 2, 2)}
    assert {row.model for row in rows} == {MODEL}


async def test_jobs_that_no_worker_ended_count_what_was_published(bench: Bench) -> None:
    bench.make(max_attempts=1)
    waiting = await bench.submit("k1", tenant="acme")
    await bench.queue.cancel(waiting, "enough")
    lost = await bench.submit("k2", tenant="acme")
    claim = await bench.claim_one()
    await bench.emit(claim, bench.token(1), bench.token(2), bench.token(3))
    await bench.queue.expire_worker(MODEL, "w1")
    await bench.queue.reap(MODEL)
    assert (await bench.end(lost)).reason is EndReason.ERROR
    assert shown(await days_of(bench, lost)) == {"acme": (2, 0, 3)}
