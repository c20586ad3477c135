"""What producers are promised: accepted once, bounded, found again, cancelled in any state."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from headway.queueing.claims import Fenced
from headway.queueing.errors import (
    IdempotencyConflictError,
    InvalidJobError,
    QueueFullError,
    UnknownJobError,
)
from headway.queueing.events import START, ChoiceResult, Cursor, EndReason, JobState
from headway.queueing.messages import Job, Priority
from headway.queueing.protocol import Cancelled

if TYPE_CHECKING:
    from tests.contract.conftest import Bench

MODEL = "org/tiny"


def _said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def test_a_job_is_accepted_under_its_lane_and_key(bench: Bench) -> None:
    submitted = await bench.submit("order-7")
    assert submitted == "org--tiny:0:order-7"
    status = await bench.queue.status(submitted)
    assert (status.model, status.state, status.priority) == (MODEL, JobState.QUEUED, Priority.STANDARD)
    assert status.created_ms > 0


async def test_a_repeated_key_changes_nothing(bench: Bench) -> None:
    await bench.submit("k1", prompt="first")
    job = (await bench.queue.submit(_job(prompt="second"), key="k1")).created
    assert job is False
    (claim,) = await bench.claim()
    assert b"first" in claim.body


async def test_without_a_key_each_submit_is_a_new_job(bench: Bench) -> None:
    ids = {await bench.submit() for _ in range(20)}
    assert len(ids) == 20
    assert len(await bench.claim()) == 20


async def test_an_idempotency_key_names_one_job_whatever_the_field_order_or_trace(bench: Bench) -> None:
    first = await bench.submit_body(
        b'{"model":"org/tiny","prompt":"x","idempotency_key":"i","traceparent":"a","sampling":{"n":1,"top_k":2}}'
    )
    again = await bench.submit_body(
        b'{"sampling":{"top_k":2,"n":1},"traceparent":"b","idempotency_key":"i","prompt":"x","model":"org/tiny"}'
    )
    assert again == first
    assert len(await bench.claim()) == 1


async def test_an_idempotency_key_belongs_to_its_tenant(bench: Bench) -> None:
    one = await bench.submit(idempotency_key="i", tenant="a")
    two = await bench.submit(idempotency_key="i", tenant="b")
    assert one != two


async def test_an_idempotency_key_with_another_body_is_a_conflict(bench: Bench) -> None:
    await bench.submit(idempotency_key="i", prompt="x")
    with pytest.raises(IdempotencyConflictError):
        await bench.submit(idempotency_key="i", prompt="y")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"prompt_token_ids": [1, 2, 3]}, {"prompt_token_ids": [3, 2, 1]}),
        ({"prompt_token_ids": [0, 0]}, {"prompt_token_ids": [0]}),
        ({"prompt": "1"}, {"prompt_token_ids": [1]}),
        ({"messages": [_said("a"), _said("b")]}, {"messages": [_said("b"), _said("a")]}),
        ({"prompt": "x", "metadata": {"a": "b"}}, {"prompt": "x", "metadata": {"b": "a"}}),
        ({"prompt": "x", "sampling": {"seed": 1}}, {"prompt": "x", "sampling": {"top_k": 1}}),
    ],
)
async def test_only_equal_bodies_are_taken_for_a_repeat(
    bench: Bench, one: dict[str, Any], other: dict[str, Any]
) -> None:
    first = await bench.submit(idempotency_key="i", **one)
    assert await bench.submit(idempotency_key="i", **one) == first
    with pytest.raises(IdempotencyConflictError):
        await bench.submit(idempotency_key="i", **other)


async def test_a_full_lane_refuses_new_jobs_but_not_repeats(bench: Bench) -> None:
    bench.make(max_queued_jobs=2)
    first = await bench.submit("k1", idempotency_key="i")
    await bench.submit("k2", priority="batch")
    with pytest.raises(QueueFullError) as refused:
        await bench.submit("k3")
    assert refused.value.retry_after_seconds > 0
    assert await bench.submit("k1") == first
    assert await bench.submit("k9", idempotency_key="i") == first
    await bench.claim_one()
    await bench.submit("k3")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", "body"),
        (b"[]", "body"),
        (b'"text"', "body"),
        (b'{"model":"org/tiny"', "body"),
        (b'{"prompt":"x"}', "model"),
        (b'{"model":"other","prompt":"x"}', "model"),
        (b'{"model":7,"prompt":"x"}', "model"),
        (b'{"model":"org/tiny","tenant":"a b"}', "tenant"),
        (b'{"model":"org/tiny","tenant":[]}', "tenant"),
        (b'{"model":"org/tiny","priority":"urgent"}', "priority"),
        (b'{"model":"org/tiny","deadline_seconds":0}', "deadline_seconds"),
        (b'{"model":"org/tiny","deadline_seconds":true}', "deadline_seconds"),
        (b'{"model":"org/tiny","deadline_seconds":1e9}', "deadline_seconds"),
        (b'{"model":"org/tiny","idempotency_key":""}', "idempotency_key"),
        (b"[" * 5000 + b"]" * 5000, "body"),
    ],
)
async def test_a_wrong_body_is_refused_with_the_field_at_fault(bench: Bench, body: bytes, param: str) -> None:
    with pytest.raises(InvalidJobError) as refused:
        await bench.submit_body(body)
    assert refused.value.param == param
    assert str(refused.value).startswith(f"{param}: ")
    assert (await bench.queue.depth(MODEL)).queued[Priority.STANDARD] == 0


async def test_a_body_over_the_limit_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidJobError) as refused:
        await bench.submit_body(b'{"model":"org/tiny","prompt":"' + b"x" * (1 << 20) + b'"}')
    assert refused.value.code == "job_too_large"


@pytest.mark.parametrize("key", ["", "a b", "x" * 65, "ключ", "a:b", "a\n"])
async def test_a_key_that_no_id_could_carry_is_refused(bench: Bench, key: str) -> None:
    with pytest.raises(InvalidJobError):
        await bench.submit(key)


@pytest.mark.parametrize(
    "job_id", ["", "x", "org--tiny:0:", "org--tiny:0:a b", "org--tiny:0:nope", "a/b:0:k"]
)
async def test_an_unknown_id_says_so_in_every_call(bench: Bench, job_id: str) -> None:
    for call in (
        bench.queue.status(job_id),
        bench.queue.result(job_id),
        bench.queue.cancel(job_id, "why"),
        bench.queue.read(job_id, START, wait_seconds=0),
        bench.queue.read(job_id, START, wait_seconds=5),
    ):
        with pytest.raises(UnknownJobError):
            await call


async def test_cancel_ends_a_queued_job_at_once(bench: Bench) -> None:
    job_id = await bench.submit(sampling={"n": 2})
    assert await bench.queue.cancel(job_id, "changed my mind") is Cancelled.QUEUED
    end = await bench.end(job_id)
    assert end.reason is EndReason.CANCELLED
    assert [choice.finish_reason for choice in end.choices] == [EndReason.CANCELLED] * 2
    assert await bench.claim() == []
    status = await bench.queue.status(job_id)
    assert (status.state, status.cancel_reason) == (JobState.FINISHED, "changed my mind")
    assert (await bench.queue.depth(MODEL)).queued == dict.fromkeys(Priority, 0)


async def test_cancel_tells_the_worker_of_a_running_job_and_keeps_the_first_reason(bench: Bench) -> None:
    job_id = await bench.submit()
    claim = await bench.claim_one()
    assert await bench.queue.cancel(job_id, "first") is Cancelled.RUNNING
    assert await bench.queue.cancel(job_id, "second") is Cancelled.RUNNING
    assert await bench.queue.renew([(job_id, claim.token)]) == (Fenced.CANCELLED,)
    assert (await bench.queue.status(job_id)).cancel_reason == "first"


async def test_cancel_of_a_finished_job_is_too_late(bench: Bench) -> None:
    job_id = await bench.submit()
    await bench.finish(await bench.claim_one(), bench.token(1))
    assert await bench.queue.cancel(job_id, "late") is Cancelled.FINISHED
    assert (await bench.end(job_id)).reason is EndReason.STOP


async def test_cancel_of_a_returned_job_keeps_what_was_published(bench: Bench) -> None:
    job_id = await bench.submit()
    claim = await bench.claim_one()
    await bench.emit(claim, bench.token(1), bench.token(2))
    await bench.queue.release([(job_id, claim.token)])
    assert await bench.queue.cancel(job_id, "enough") is Cancelled.QUEUED
    result = await bench.queue.result(job_id)
    assert result is not None
    assert result.choices == (ChoiceResult("t1 t2 ", (101, 102), EndReason.CANCELLED),)
    assert result.usage.completion_tokens == 2
    assert [str(event.cursor) for event in await bench.read(job_id)] == ["1-0", "2-0", "2-1"]
    assert await bench.claim() == []


async def test_a_job_past_its_deadline_ends_at_the_claim(bench: Bench) -> None:
    job_id = await bench.submit(deadline_seconds=0.05)
    await bench.elapse(0.06)
    assert await bench.claim() == []
    assert (await bench.end(job_id)).reason is EndReason.DEADLINE


async def test_a_deadline_passes_without_any_worker(bench: Bench) -> None:
    bench.make(watch_seconds=0.05)
    job_id = await bench.submit(deadline_seconds=0.05)
    await bench.elapse(0.06)
    (end,) = await bench.queue.read(job_id, START, wait_seconds=10)
    assert end.cursor == Cursor(0, 1)
    assert (await bench.queue.status(job_id)).reason is EndReason.DEADLINE
    assert (await bench.queue.depth(MODEL)).queued == dict.fromkeys(Priority, 0)


async def test_a_deadline_that_is_a_wish_ends_nothing_in_the_queue(bench: Bench) -> None:
    bench.make(watch_seconds=0.05)
    job_id = await bench.submit(deadline_seconds=0.05, demotable=True)
    await bench.elapse(0.06)
    assert await bench.queue.read(job_id, START, wait_seconds=0.1) == ()
    claim = await bench.claim_one()
    assert (claim.job_id, claim.deadline_ms) == (job_id, 0)


async def test_the_deadline_is_counted_from_acceptance_by_the_servers_clock(bench: Bench) -> None:
    await bench.submit(deadline_seconds=60)
    claim = await bench.claim_one()
    assert claim.deadline_ms == claim.created_ms + 60_000
    assert claim.created_ms <= claim.now_ms < claim.created_ms + 5_000


async def test_status_tells_what_the_job_said_of_itself(bench: Bench) -> None:
    job_id = await bench.submit(
        tenant="acme", priority="batch", metadata={"run": "7 ü"}, on_disconnect="detach"
    )
    status = await bench.queue.status(job_id)
    assert (status.tenant, status.priority) == ("acme", Priority.BATCH)
    assert (status.metadata, status.on_disconnect) == ({"run": "7 ü"}, "detach")
    assert (status.worker, status.reason, status.error, status.started_ms) == (None, None, None, 0)
    claim = await bench.claim_one("w9")
    await bench.emit(claim, bench.token(1))
    status = await bench.queue.status(job_id)
    assert (status.state, status.worker, status.committed_tokens) == (JobState.RUNNING, "w9", 1)
    assert status.started_ms >= status.created_ms
    await bench.finish(claim)
    status = await bench.queue.status(job_id)
    assert (status.state, status.reason) == (JobState.FINISHED, EndReason.STOP)
    assert status.finished_ms >= status.started_ms


async def test_there_is_no_result_before_the_end(bench: Bench) -> None:
    job_id = await bench.submit()
    assert await bench.queue.result(job_id) is None
    claim = await bench.claim_one()
    assert await bench.queue.result(job_id) is None
    finish = bench.ending(claim, bench.token(1))
    await bench.queue.finish([finish])
    assert await bench.queue.result(job_id) == finish.result


async def test_answers_outlive_streams_and_both_end(bench: Bench) -> None:
    bench.make(stream_retention_seconds=0.1, record_retention_seconds=0.4)
    job_id = await bench.submit()
    claim = await bench.claim_one()
    await bench.emit(claim, bench.token(1), bench.token(2))
    finish = bench.ending(claim, bench.token(1), bench.token(2))
    await bench.queue.finish([finish])
    await bench.elapse(0.15)
    tokens, end = await bench.read(job_id)
    assert (tokens.cursor, end.cursor) == (Cursor(2), Cursor(2, 1))
    with pytest.raises(UnknownJobError, match="result"):
        await bench.read(job_id, Cursor(1))
    assert await bench.queue.result(job_id) == finish.result
    await bench.elapse(0.5)
    for call in (bench.queue.result(job_id), bench.read(job_id), bench.queue.status(job_id)):
        with pytest.raises(UnknownJobError):
            await call


async def test_concurrent_submits_of_one_key_create_one_job(bench: Bench) -> None:
    made = await asyncio.gather(*(bench.queue.submit(_job(prompt=str(i)), key="k") for i in range(20)))
    assert sum(submitted.created for submitted in made) == 1
    assert len(await bench.claim()) == 1


def _job(**fields: object) -> Job:
    return Job.model_validate({"model": MODEL, **fields})
