"""What workers are promised: order, fencing, leases, and that no crash loses or repeats anything."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from headway.queueing.claims import Fenced, Finish
from headway.queueing.events import ChoiceResult, Cursor, EndReason, JobState, TokenEvent
from headway.queueing.messages import Priority, decode_job
from headway.queueing.protocol import Cancelled

if TYPE_CHECKING:
    from tests.contract.conftest import Bench

MODEL = "org/tiny"


async def test_a_claim_carries_what_a_worker_needs(bench: Bench) -> None:
    job_id = await bench.submit("k", prompt="hello", sampling={"seed": 2**62 + 1})
    claim = await bench.claim_one()
    assert (claim.job_id, claim.epoch, claim.attempts, claim.committed) == (job_id, 1, 0, ())
    assert decode_job(claim.body).prompt == "hello"
    assert claim.seed == 2**62 + 1
    assert claim.deadline_ms == 0
    assert claim.cancel_reason is None


async def test_a_job_without_a_seed_draws_alike_in_every_attempt(bench: Bench) -> None:
    await bench.submit("a")
    await bench.submit("b")
    first = {claim.job_id: claim for claim in await bench.claim()}
    assert len({claim.seed for claim in first.values()}) == 2
    await bench.queue.release([(claim.job_id, claim.token) for claim in first.values()])
    again = {claim.job_id: claim for claim in await bench.claim()}
    assert {name: claim.seed for name, claim in again.items()} == {
        name: claim.seed for name, claim in first.items()
    }


async def test_bands_are_served_in_order_and_each_first_come_first_served(bench: Bench) -> None:
    for key in ("b1", "s1", "i1", "b2", "s2", "i2"):
        priority = {"b": "batch", "s": "standard", "i": "interactive"}[key[0]]
        await bench.submit(key, priority=priority)
    assert await _keys(bench, room=4) == ["i1", "i2", "s1", "s2"]
    assert await _keys(bench, room=4) == ["b1", "b2"]


async def test_a_returned_job_goes_before_its_band_and_behind_better_bands(bench: Bench) -> None:
    await bench.submit("s1")
    claim = await bench.claim_one()
    await bench.submit("s2")
    await bench.submit("i1", priority="interactive")
    await bench.queue.release([(claim.job_id, claim.token)])
    assert await _keys(bench, room=3) == ["i1", "s1", "s2"]


async def test_an_aged_job_goes_ahead_of_better_bands_the_oldest_first(bench: Bench) -> None:
    bench.make(standard_age_seconds=0.15, batch_age_seconds=0.05)
    await bench.submit("b1", priority="batch")
    await bench.elapse(0.02)
    await bench.submit("s1")
    await bench.elapse(0.2)
    await bench.submit("i1", priority="interactive")
    assert await _keys(bench, room=1) == ["b1"]


async def test_a_claim_of_better_jobs_brings_no_others_aged_and_returned_ones_neither(bench: Bench) -> None:
    bench.make(batch_age_seconds=0.05)
    await bench.submit("returned", priority="batch")
    await bench.queue.release([(claim.job_id, claim.token) for claim in await bench.claim()])
    await bench.submit("aged", priority="batch")
    await bench.elapse(0.1)
    for number in range(6):
        await bench.submit(f"s{number}")
    await bench.submit("i", priority="interactive")
    better = [await bench.claim_one(least=Priority.STANDARD) for _ in range(7)]
    assert [claim.job_id[-2:] for claim in better] == [":i", *(f"s{number}" for number in range(6))]
    assert await bench.claim(least=Priority.STANDARD) == []
    assert len(await bench.claim()) == 2


async def test_an_aged_backlog_takes_at_most_every_fourth_place(bench: Bench) -> None:
    bench.make(batch_age_seconds=0.05)
    for n in range(3):
        await bench.submit(f"b{n}", priority="batch")
    await bench.elapse(0.1)
    for n in range(8):
        await bench.submit(f"i{n}", priority="interactive")
    assert await _keys(bench, room=5) == ["b0", "i0", "i1", "i2", "b1"]
    assert await _keys(bench, room=6) == ["i3", "i4", "i5", "b2", "i6", "i7"]


async def test_every_job_is_claimed_once_by_many_workers(bench: Bench) -> None:
    for n in range(60):
        await bench.submit(f"k{n}")
    taken = await asyncio.gather(*(bench.queue.claim(MODEL, f"w{n}", 7) for n in range(10)))
    keys = [claim.job_id for claims in taken for claim in claims]
    assert len(keys) == len(set(keys)) == 60


async def test_depth_counts_each_state(bench: Bench) -> None:
    for n in range(3):
        await bench.submit(f"s{n}")
    await bench.submit("b", priority="batch")
    claim = await bench.claim_one()
    depth = await bench.queue.depth(MODEL)
    assert depth.queued == {Priority.INTERACTIVE: 0, Priority.STANDARD: 2, Priority.BATCH: 1}
    assert (depth.running, depth.dead_letters) == (1, 0)
    await bench.finish(claim, dead_letter="wrong")
    depth = await bench.queue.depth(MODEL)
    assert (depth.running, depth.dead_letters) == (0, 1)


# -- fencing ------------------------------------------------------------------------------------------


async def test_a_repeated_emit_shows_once(bench: Bench) -> None:
    job_id = await bench.submit()
    claim = await bench.claim_one()
    for _ in range(3):
        assert await bench.emit(claim, bench.token(1), bench.token(2)) is Fenced.OK
    assert await bench.emit(claim, bench.token(2), bench.token(3)) is Fenced.OK
    assert [event.cursor.tokens for event in await bench.read(job_id)] == [1, 2, 3]


async def test_one_emit_serves_many_jobs_each_by_its_own_claim(bench: Bench) -> None:
    ids = [await bench.submit(f"k{n}") for n in range(3)]
    claims = await bench.claim()
    await bench.queue.cancel(ids[1], "stop")
    stale = bench.emit_of(claims[2], bench.token(1), token="0" * 32)
    emits = [bench.emit_of(claims[0], bench.token(1)), bench.emit_of(claims[1], bench.token(1)), stale]
    assert await bench.queue.emit(emits) == (Fenced.OK, Fenced.OK, Fenced.LOST)
    assert await bench.queue.renew([(ids[1], claims[1].token)]) == (Fenced.CANCELLED,)
    assert [len(await bench.read(job_id)) for job_id in ids] == [1, 1, 0]
    assert await bench.queue.emit([]) == ()


async def test_nothing_a_zombie_writes_is_seen(bench: Bench) -> None:
    bench.make(lease_seconds=0.05)
    job_id = await bench.submit()
    zombie = await bench.claim_one("old")
    await bench.emit(zombie, bench.token(1, "good "))
    await bench.elapse(0.06)
    assert (await bench.queue.reap(MODEL)).requeued == (job_id,)
    assert await bench.emit(zombie, bench.token(2, "bad ")) is Fenced.LOST
    heir = await bench.claim_one("new")
    assert await bench.emit(zombie, bench.token(2, "bad ")) is Fenced.LOST
    assert await bench.queue.renew([(job_id, zombie.token)]) == (Fenced.LOST,)
    assert await bench.queue.release([(job_id, zombie.token)]) == (Fenced.LOST,)
    assert await bench.finish(zombie, bench.token(2, "bad "), dead_letter="bad") is Fenced.LOST
    assert await bench.finish(heir, bench.token(2, "fine")) is Fenced.OK
    assert await bench.finish(zombie, bench.token(2, "bad ")) is Fenced.LOST
    result = await bench.queue.result(job_id)
    assert result is not None
    assert result.choices[0].text == "good fine"
    assert (await bench.queue.depth(MODEL)).dead_letters == 0


async def test_a_repeated_finish_is_answered_alike_and_written_once(bench: Bench) -> None:
    job_id = await bench.submit()
    claim = await bench.claim_one()
    assert await bench.finish(claim, bench.token(1), dead_letter="bad") is Fenced.OK
    assert await bench.finish(claim, bench.token(1), dead_letter="bad") is Fenced.OK
    assert [str(event.cursor) for event in await bench.read(job_id)] == ["1-0", "1-1"]
    assert (await bench.queue.depth(MODEL)).dead_letters == 1


async def test_a_job_that_never_was_is_lost(bench: Bench) -> None:
    await bench.submit("known")
    claim = await bench.claim_one()
    other = "org--tiny:0:unknown"
    assert await bench.queue.emit([bench.emit_of(claim, bench.token(1), job_id=other)]) == (Fenced.LOST,)
    assert await bench.finish(claim, job_id=other) is Fenced.LOST
    assert await bench.queue.renew([(other, "")]) == (Fenced.LOST,)


async def test_a_finish_brings_the_last_tokens_and_the_dead_letter(bench: Bench) -> None:
    job_id = await bench.submit(tenant="acme")
    claim = await bench.claim_one()
    await bench.emit(claim, bench.token(1))
    finish = bench.ending(claim, bench.token(1), bench.token(2), dead_letter="no such model")
    assert await bench.queue.finish([finish]) == (Fenced.OK,)
    assert [str(event.cursor) for event in await bench.read(job_id)] == ["1-0", "2-0", "2-1"]
    (letter,) = await bench.queue.dead_letters(MODEL)
    assert (letter.job_id, letter.tenant, letter.reason) == (job_id, "acme", "no such model")
    assert (letter.attempts, letter.committed_tokens) == (0, 2)


# -- leases -------------------------------------------------------------------------------------------


async def test_a_renewed_lease_keeps_a_long_job_with_its_worker(bench: Bench) -> None:
    bench.make(lease_seconds=0.25)
    job_id = await bench.submit()
    claim = await bench.claim_one()
    for _ in range(4):
        await bench.elapse(0.1)
        assert await bench.queue.renew([(job_id, claim.token)]) == (Fenced.OK,)
        assert await bench.queue.reap(MODEL) == await bench.queue.reap(MODEL)
    status = await bench.queue.status(job_id)
    assert (status.state, status.attempts) == (JobState.RUNNING, 0)


async def test_the_heir_continues_from_the_last_committed_token(bench: Bench) -> None:
    bench.make(lease_seconds=0.05)
    job_id = await bench.submit()
    first = await bench.claim_one()
    held_back = TokenEvent(Cursor(3), 0, "", (103,))
    await bench.emit(first, TokenEvent(Cursor(2), 0, "ab", (101, 102)), held_back)
    await bench.elapse(0.06)
    await bench.queue.reap(MODEL)
    second = await bench.claim_one("w2")
    assert (second.job_id, second.epoch, second.attempts) == (job_id, 2, 1)
    assert second.token != first.token
    assert second.seed == first.seed
    assert second.committed == (TokenEvent(Cursor(2), 0, "ab", (101, 102)), held_back)
    await bench.emit(second, bench.token(4))
    assert [event.cursor.tokens for event in await bench.read(job_id)] == [2, 3, 4]


async def test_a_job_that_kills_its_workers_is_given_up(bench: Bench) -> None:
    bench.make(lease_seconds=0.05, max_attempts=3)
    job_id = await bench.submit(tenant="acme")
    for attempt in range(1, 4):
        claim = await bench.claim_one()
        await bench.emit(claim, bench.token(attempt))
        await bench.elapse(0.06)
        reaped = await bench.queue.reap(MODEL)
        assert (reaped.requeued, reaped.dead_lettered) == (
            ((job_id,), ()) if attempt < 3 else ((), (job_id,))
        )
    end = await bench.end(job_id)
    assert end.reason is EndReason.ERROR
    assert end.error is not None
    assert end.error.code == "too_many_attempts"
    assert not end.error.is_callers_fault
    (letter,) = await bench.queue.dead_letters(MODEL)
    assert (letter.job_id, letter.attempts, letter.committed_tokens) == (job_id, 3, 3)
    assert await bench.claim() == []
    result = await bench.queue.result(job_id)
    assert result is not None
    assert result.choices == (ChoiceResult("t1 t2 t3 ", (101, 102, 103), EndReason.ERROR),)


async def test_a_drain_counts_no_attempt(bench: Bench) -> None:
    bench.make(max_attempts=1)
    job_id = await bench.submit()
    for _ in range(3):
        claim = await bench.claim_one()
        assert await bench.queue.release([(job_id, claim.token)]) == (Fenced.OK,)
        status = await bench.queue.status(job_id)
        assert (status.state, status.worker) == (JobState.QUEUED, None)
    claim = await bench.claim_one()
    assert (claim.attempts, claim.epoch) == (0, 4)


async def test_a_cancelled_job_ends_when_it_is_handed_back_or_taken_back(bench: Bench) -> None:
    bench.make(lease_seconds=0.05)
    ids = [await bench.submit(f"k{n}") for n in range(2)]
    released, lapsed = await bench.claim()
    for job_id in ids:
        assert await bench.queue.cancel(job_id, "stop") is Cancelled.RUNNING
    assert await bench.queue.release([(released.job_id, released.token)]) == (Fenced.OK,)
    await bench.elapse(0.06)
    reaped = await bench.queue.reap(MODEL)
    assert (reaped.requeued, reaped.dead_lettered) == ((), ())
    for job_id in ids:
        assert (await bench.end(job_id)).reason is EndReason.CANCELLED
    assert await bench.claim() == []
    assert await bench.emit(lapsed, bench.token(1)) is Fenced.LOST


async def test_the_jobs_of_a_dead_worker_move_on_at_once(bench: Bench) -> None:
    for n in range(4):
        await bench.submit(f"k{n}")
    dead = await bench.claim(3, "dead")
    await bench.claim(1, "alive")
    assert await bench.queue.expire_worker(MODEL, "dead") == 3
    assert {claim.job_id for claim in await bench.claim()} == {claim.job_id for claim in dead}
    assert await bench.queue.expire_worker(MODEL, "dead") == 0


async def test_reaping_from_many_places_takes_each_job_back_once(bench: Bench) -> None:
    bench.make(lease_seconds=0.05)
    for n in range(20):
        await bench.submit(f"k{n}")
    await bench.claim()
    await bench.elapse(0.06)
    reaped = await asyncio.gather(*(bench.queue.reap(MODEL) for _ in range(5)))
    assert sorted(job_id for each in reaped for job_id in each.requeued) == sorted(
        f"org--tiny:0:k{n}" for n in range(20)
    )
    assert {claim.attempts for claim in await bench.claim()} == {1}


async def test_several_choices_keep_their_own_ends(bench: Bench) -> None:
    job_id = await bench.submit(sampling={"n": 2})
    claim = await bench.claim_one()
    done = TokenEvent(Cursor(2), 1, "b", (7,), finish_reason=EndReason.STOP)
    await bench.emit(claim, bench.token(1), done)
    await bench.queue.release([(job_id, claim.token)])
    await bench.queue.cancel(job_id, "enough")
    end = await bench.end(job_id)
    assert [choice.finish_reason for choice in end.choices] == [EndReason.CANCELLED, EndReason.STOP]


@pytest.mark.parametrize("tokens", [0, 1, 5])
async def test_the_terminal_entry_always_follows_the_last_token(bench: Bench, tokens: int) -> None:
    """Even if the worker's own count is behind, as after a lost reply."""
    job_id = await bench.submit()
    claim = await bench.claim_one()
    if tokens:
        await bench.emit(claim, *(bench.token(n) for n in range(1, tokens + 1)))
    finish = bench.ending(claim)
    assert isinstance(finish, Finish)
    await bench.queue.finish([finish])
    events = await bench.read(job_id)
    assert len(events) == tokens + 1
    assert events[-1].cursor == Cursor(tokens, 1)


async def _keys(bench: Bench, room: int) -> list[str]:
    return [claim.job_id.rpartition(":")[2] for claim in await bench.claim(room)]
