"""What operators are promised: they see every job wherever it is, and a second try is a new job."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from headway.queueing.claims import Fenced
from headway.queueing.errors import InvalidJobError, QueueFullError, UnknownJobError
from headway.queueing.events import EndReason, JobState
from headway.queueing.messages import Job, Priority, decode_job
from headway.queueing.protocol import Submitted

if TYPE_CHECKING:
    from tests.contract.conftest import Bench

MODEL = "org/tiny"


# -- dead letters -------------------------------------------------------------------------------------


async def test_a_dead_letter_is_redriven_as_a_new_job(bench: Bench) -> None:
    old = await _dead(bench, "k1", tenant="acme", prompt="again", idempotency_key="i", deadline_seconds=60)
    (letter,) = await bench.queue.dead_letters(MODEL)
    submitted = await bench.queue.redrive(MODEL, letter.entry_id, key="k2")
    assert (submitted.job_id, submitted.created) == ("org--tiny:0:k2", True)
    assert await bench.queue.dead_letters(MODEL) == ()
    claim = await bench.claim_one()
    job = decode_job(claim.body)
    assert (claim.job_id, job.prompt, job.tenant) == (submitted.job_id, "again", "acme")
    assert claim.deadline_ms == claim.created_ms + 60_000
    status = await bench.queue.status(submitted.job_id)
    assert (status.retry_of, status.attempts) == (old, 0)
    await bench.finish(claim, bench.token(1))
    assert (await bench.queue.status(old)).state is JobState.FINISHED
    assert (await bench.end(old)).reason is EndReason.STOP, "the first end stays as it was"


async def test_a_repeated_redrive_changes_nothing(bench: Bench) -> None:
    await _dead(bench, "k1")
    (letter,) = await bench.queue.dead_letters(MODEL)
    made = await asyncio.gather(*(bench.queue.redrive(MODEL, letter.entry_id, key="k2") for _ in range(5)))
    assert sum(each.created for each in made) == 1
    assert len(await bench.claim()) == 1


async def test_a_letter_stays_when_its_redrive_is_refused(bench: Bench) -> None:
    bench.make(max_queued_jobs=1)
    await _dead(bench, "k1")
    await bench.submit("other")
    (letter,) = await bench.queue.dead_letters(MODEL)
    with pytest.raises(QueueFullError):
        await bench.queue.redrive(MODEL, letter.entry_id)
    assert await bench.queue.dead_letters(MODEL) == (letter,)


async def test_a_dead_letters_body_outlives_its_record(bench: Bench) -> None:
    bench.make(record_retention_seconds=0.05)
    old = await _dead(bench, "k1", prompt="still here")
    await bench.elapse(0.06)
    with pytest.raises(UnknownJobError):
        await bench.queue.status(old)
    (letter,) = await bench.queue.dead_letters(MODEL)
    await bench.queue.redrive(MODEL, letter.entry_id)
    assert decode_job((await bench.claim_one()).body).prompt == "still here"


@pytest.mark.parametrize("entry_id", ["1-0", "999999999999999-0", "", "x", "1", "1-0-0", "-", "+"])
async def test_a_letter_that_is_not_there_is_unknown(bench: Bench, entry_id: str) -> None:
    with pytest.raises(UnknownJobError):
        await bench.queue.redrive(MODEL, entry_id)
    if entry_id[:1].isdecimal() and entry_id.count("-") == 1:
        assert await bench.queue.purge(MODEL, [entry_id]) == 0
    else:
        with pytest.raises(UnknownJobError):
            await bench.queue.purge(MODEL, [entry_id])


async def test_purge_removes_the_letters_named_or_all(bench: Bench) -> None:
    for n in range(4):
        await _dead(bench, f"k{n}")
    letters = await bench.queue.dead_letters(MODEL)
    assert await bench.queue.purge(MODEL, []) == 0
    assert await bench.queue.purge(MODEL, [letters[1].entry_id]) == 1
    assert await bench.queue.dead_letters(MODEL) == (letters[0], *letters[2:])
    with pytest.raises(UnknownJobError):
        await bench.queue.redrive(MODEL, letters[1].entry_id)
    assert await bench.queue.purge(MODEL) == 3
    assert await bench.queue.dead_letters(MODEL) == ()
    assert (await bench.queue.status("org--tiny:0:k0")).state is JobState.FINISHED


async def test_a_job_that_has_ended_is_posted_again_as_a_new_one(bench: Bench) -> None:
    old = await bench.submit("k1", prompt="again", priority="batch")
    await bench.queue.cancel(old, "mistaken")
    submitted = await bench.queue.retry(old, key="k2")
    assert submitted.created
    assert await bench.queue.retry(old, key="k2") == Submitted(submitted.job_id, created=False)
    claim = await bench.claim_one()
    assert (claim.job_id, decode_job(claim.body).prompt) == (submitted.job_id, "again")
    assert (await bench.queue.status(submitted.job_id)).retry_of == old


async def test_a_job_that_goes_on_is_not_posted_again(bench: Bench) -> None:
    job_id = await bench.submit("k1")
    with pytest.raises(InvalidJobError, match="not ended"):
        await bench.queue.retry(job_id)
    await bench.claim_one()
    with pytest.raises(InvalidJobError, match="not ended"):
        await bench.queue.retry(job_id)
    with pytest.raises(UnknownJobError):
        await bench.queue.retry("org--tiny:0:none")


async def test_a_record_says_when_its_first_token_came_whoever_continues_it(bench: Bench) -> None:
    job_id = await bench.submit("k1")
    first = await bench.claim_one("w1")
    assert (await bench.queue.status(job_id)).first_token_ms == 0
    await bench.emit(first, bench.token(1))
    told = (await bench.queue.status(job_id)).first_token_ms
    assert told >= (await bench.queue.status(job_id)).claimed_ms > 0
    await bench.elapse(0.01)
    await bench.emit(first, bench.token(1))
    await bench.queue.release([(job_id, first.token)])
    second = await bench.claim_one("w2")
    await bench.finish(second, bench.token(2))
    assert (await bench.queue.status(job_id)).first_token_ms == told


async def test_an_answer_that_comes_whole_has_its_first_token_at_its_end(bench: Bench) -> None:
    job_id = await bench.submit("k1")
    await bench.finish(await bench.claim_one(), bench.token(1), bench.token(2))
    status = await bench.queue.status(job_id)
    assert status.claimed_ms <= status.first_token_ms <= status.finished_ms
    empty = await bench.submit("k2")
    await bench.finish(await bench.claim_one())
    assert (await bench.queue.status(empty)).first_token_ms == 0


async def test_who_waits_is_listed_with_the_age_of_the_job_that_is_next(bench: Bench) -> None:
    oldest = await bench.submit("k1", tenant="a")
    await bench.elapse(0.01)
    await bench.submit("k2", tenant="a")
    await bench.submit("k3", tenant="b", priority="batch")
    found = {each.tenant: each.next_created_ms for each in await bench.queue.tenants(MODEL)}
    assert found["a"] == (await bench.queue.status(oldest)).created_ms < found["b"]


# -- what is there ------------------------------------------------------------------------------------


async def test_every_job_is_listed_where_it_is(bench: Bench) -> None:
    for n in range(2):
        await bench.submit(f"a{n}", tenant="a")
    await bench.submit("b0", tenant="b")
    await bench.submit("i0", tenant="a", priority="interactive")
    assert await _waiting(bench) == ["i0", "a0", "a1", "b0"]
    running = await bench.claim_one()
    back = await bench.claim_one()
    await bench.queue.release([(back.job_id, back.token)])
    assert await _waiting(bench) == ["a0", "b0", "a1"]
    assert await _waiting(bench, tenant="b") == ["b0"]
    assert await _waiting(bench, tenant="a", limit=1) == ["a0"]
    assert await _waiting(bench, limit=2) == ["a0", "b0"]
    (job,) = await bench.queue.running_jobs(MODEL)
    assert (job.job_id, job.worker, job.state) == (running.job_id, "w1", JobState.RUNNING)
    await bench.finish(running, bench.token(1))
    assert await bench.queue.running_jobs(MODEL) == ()


async def test_the_newest_ends_are_listed_first(bench: Bench) -> None:
    one = await bench.submit("k1", tenant="a", priority="batch")
    two = await bench.submit("k2", tenant="b")
    await bench.queue.cancel(one, "no")
    await bench.finish(await bench.claim_one(), bench.token(1), bench.token(2))
    newest, oldest = await bench.queue.recent_jobs(MODEL)
    assert (newest.job_id, newest.tenant, newest.priority) == (two, "b", Priority.STANDARD)
    assert (newest.reason, newest.completion_tokens) == (EndReason.STOP, 2)
    assert (oldest.job_id, oldest.reason, oldest.completion_tokens) == (one, EndReason.CANCELLED, 0)
    assert 0 < newest.created_ms <= newest.ended_ms
    assert len(await bench.queue.recent_jobs(MODEL, limit=1)) == 1


async def test_a_jobs_history_tells_of_every_claim(bench: Bench) -> None:
    bench.make(lease_seconds=0.05)
    job_id = await bench.submit("k1")
    first = await bench.claim_one("w1")
    await bench.emit(first, bench.token(1))
    await bench.queue.release([(job_id, first.token)])
    second = await bench.claim_one("w2")
    await bench.emit(second, bench.token(2), bench.token(3))
    await bench.elapse(0.06)
    await bench.queue.reap(MODEL)
    third = await bench.claim_one("w3")
    status = await bench.queue.status(job_id)
    assert [(each.worker, each.outcome, each.committed_tokens) for each in status.history] == [
        ("w1", "released", 1),
        ("w2", "lost", 3),
    ]
    assert all(0 < each.claimed_ms <= each.ended_ms for each in status.history)
    assert (status.worker, status.attempts, status.committed_tokens) == ("w3", 1, 3)
    assert status.started_ms == status.history[0].claimed_ms <= status.claimed_ms
    await bench.finish(third, bench.token(4))
    assert len((await bench.queue.status(job_id)).history) == 2


async def test_a_long_history_keeps_its_newest_part(bench: Bench) -> None:
    job_id = await bench.submit("k1")
    for n in range(80):
        claim = await bench.claim_one(f"worker-{n:02}")
        await bench.queue.release([(job_id, claim.token)])
    history = (await bench.queue.status(job_id)).history
    assert 20 < len(history) <= 80
    assert [each.worker for each in history] == [f"worker-{n:02}" for n in range(80)][-len(history) :]


# -- settlements --------------------------------------------------------------------------------------


async def test_the_end_of_a_reserved_job_is_settled_exactly_once(bench: Bench) -> None:
    bench.make(lease_seconds=0.05)
    job_id = (await bench.queue.submit(_job(tenant="acme"), key="k1", reserved="300/7")).job_id
    first = await bench.claim_one()
    await bench.emit(first, bench.token(1))
    await bench.elapse(0.06)
    await bench.queue.reap(MODEL)
    assert await bench.queue.settlements(MODEL) == ()
    second = await bench.claim_one()
    for _ in range(3):
        assert await bench.finish(second, bench.token(2)) is Fenced.OK
    await bench.finish(first, bench.token(2))
    (settlement,) = await bench.queue.settlements(MODEL)
    assert (settlement.job_id, settlement.tenant, settlement.reserved) == (job_id, "acme", "300/7")
    assert (settlement.prompt_tokens, settlement.completion_tokens) == (2, 2)
    assert settlement.reason is EndReason.STOP
    await bench.queue.settled(MODEL, [settlement.entry_id])
    await bench.queue.settled(MODEL, [settlement.entry_id])
    await bench.queue.settled(MODEL, [])
    assert await bench.queue.settlements(MODEL) == ()


@pytest.mark.parametrize("how", ["cancel", "deadline", "attempts"])
async def test_a_reserved_job_that_ends_without_a_worker_is_settled_too(bench: Bench, how: str) -> None:
    bench.make(lease_seconds=0.05, max_attempts=1)
    job = _job(deadline_seconds=0.05 if how == "deadline" else 60)
    job_id = (await bench.queue.submit(job, key="k1", reserved="yes")).job_id
    if how == "attempts":
        await bench.emit(await bench.claim_one(), bench.token(1))
    if how == "cancel":
        await bench.queue.cancel(job_id, "no")
    await bench.elapse(0.06)
    await bench.queue.reap(MODEL)
    (settlement,) = await bench.queue.settlements(MODEL)
    reasons = {"cancel": EndReason.CANCELLED, "deadline": EndReason.DEADLINE, "attempts": EndReason.ERROR}
    assert settlement.reason is reasons[how]
    assert settlement.completion_tokens == (1 if how == "attempts" else 0)


async def test_a_job_without_a_reservation_leaves_no_settlement(bench: Bench) -> None:
    await bench.submit("k1")
    await bench.finish(await bench.claim_one(), bench.token(1))
    assert await bench.queue.settlements(MODEL) == ()


async def _dead(bench: Bench, key: str, **fields: object) -> str:
    """A job that its worker gave up."""
    job_id = await bench.submit(key, **fields)
    await bench.finish(await bench.claim_one(), dead_letter="engine_error")
    return job_id


async def _waiting(bench: Bench, **how: object) -> list[str]:
    jobs = await bench.queue.waiting_jobs(MODEL, **how)  # type: ignore[arg-type]  # passed on as they are
    return [job.job_id.rpartition(":")[2] for job in jobs]


def _job(**fields: object) -> Job:
    return Job.model_validate({"model": MODEL, "prompt": "x", **fields})
