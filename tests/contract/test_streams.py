"""What readers are promised: every entry once, from any position, without waiting for what will not come."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from headway.queueing.errors import InvalidCursorError
from headway.queueing.events import (
    START,
    ChoiceEnd,
    Cursor,
    EndEvent,
    EndReason,
    JobError,
    StreamEvent,
    TokenEvent,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from headway.queueing.messages import Priority
from headway.queueing.worker_card import WorkerCard

if TYPE_CHECKING:
    from tests.contract.conftest import Bench

MODEL = "org/tiny"
INFINITY = float("inf")


async def test_each_entry_is_read_once_from_any_position(bench: Bench) -> None:
    job_id = await bench.submit()
    claim = await bench.claim_one()
    await bench.emit(claim, *(bench.token(n) for n in range(1, 9)))
    await bench.finish(claim)
    whole = await bench.read(job_id)
    assert len(whole) == 9
    for at, event in enumerate(whole):
        assert await bench.read(job_id, event.cursor) == whole[at + 1 :]


async def test_a_long_answer_is_read_in_pieces_without_gap_or_repeat(bench: Bench) -> None:
    job_id = await bench.submit()
    claim = await bench.claim_one()
    await bench.emit(claim, *(bench.token(n) for n in range(1, 601)))
    await bench.finish(claim)
    seen: list[StreamEvent] = []
    while events := await bench.read(job_id, seen[-1].cursor if seen else START):
        assert len(events) <= 256
        seen += events
    assert [event.cursor for event in seen] == [*(Cursor(n) for n in range(1, 601)), Cursor(600, 1)]


async def test_what_was_emitted_is_what_is_read(bench: Bench) -> None:
    job_id = await bench.submit(sampling={"n": 2, "logprobs": 2})
    claim = await bench.claim_one()
    top = (TopLogprob(5, "é", "é".encode(), -0.25), TopLogprob(6, "", b"\xff\x00", -INFINITY))
    events = (
        TokenEvent(Cursor(1), 0, 'héllo \n{"]}\x00', (5,), (TokenLogprob(5, "é", b"\xc3", -0.25, top),)),
        TokenEvent(Cursor(3), 1, "", (0, 2**31 - 1)),
        TokenEvent(Cursor(4), 1, "{", (9,), finish_reason=EndReason.LENGTH),
    )
    await bench.emit(claim, *events)
    ends = (ChoiceEnd(EndReason.STOP, "tail \U0001f680"), ChoiceEnd(EndReason.LENGTH))
    end = EndEvent(
        Cursor(4, 1),
        EndReason.ERROR,
        ends,
        Usage(7, 4, 3),
        JobError("engine_error", "it broke: /x", "prompt"),
    )
    await bench.finish(claim, end=end)
    assert await bench.read(job_id) == (*events, end)


async def test_a_server_made_answer_keeps_log_probabilities(bench: Bench) -> None:
    job_id = await bench.submit(sampling={"logprobs": 0})
    claim = await bench.claim_one()
    one, two = (TokenLogprob(n, "x", b"x", -0.5 * n) for n in (1, 2))
    await bench.emit(
        claim, TokenEvent(Cursor(1), 0, "x", (1,), (one,)), TokenEvent(Cursor(2), 0, "x", (2,), (two,))
    )
    await bench.queue.release([(job_id, claim.token)])
    await bench.queue.cancel(job_id, "stop")
    result = await bench.queue.result(job_id)
    assert result is not None
    assert result.choices[0].logprobs == (one, two)


async def test_a_waiting_reader_is_woken_by_the_entry(bench: Bench) -> None:
    job_id = await bench.submit()
    claim = await bench.claim_one()
    reading = asyncio.create_task(bench.queue.read(job_id, START, wait_seconds=30))
    await asyncio.sleep(0.05)
    await bench.emit(claim, bench.token(1))
    assert await reading == (bench.token(1),)


async def test_many_readers_of_many_jobs_each_get_their_own(bench: Bench) -> None:
    ids = [await bench.submit(f"k{n}") for n in range(30)]
    claims = await bench.claim()

    async def follow(job_id: str) -> list[StreamEvent]:
        seen: list[StreamEvent] = []
        while not seen or not isinstance(seen[-1], EndEvent):
            seen += await bench.queue.read(job_id, seen[-1].cursor if seen else START, wait_seconds=30)
        return seen

    readers = [asyncio.create_task(follow(job_id)) for job_id in ids for _ in range(3)]
    await asyncio.sleep(0.02)
    for at in range(1, 4):
        await bench.queue.emit([bench.emit_of(c, bench.token(at, f"{c.job_id}/{at} ")) for c in claims])
        await asyncio.sleep(0.005)
    await bench.queue.finish([bench.ending(claim) for claim in claims])
    for at, events in enumerate(await asyncio.gather(*readers)):
        texts = [event.text for event in events if isinstance(event, TokenEvent)]
        assert texts == [f"{ids[at // 3]}/{n} " for n in range(1, 4)]


async def test_a_reader_that_goes_away_disturbs_nobody(bench: Bench) -> None:
    job_id = await bench.submit()
    claim = await bench.claim_one()
    readers = [asyncio.create_task(bench.queue.read(job_id, START, wait_seconds=30)) for _ in range(20)]
    await asyncio.sleep(0.02)
    for leaving in readers[:10]:
        leaving.cancel()
    await bench.emit(claim, bench.token(1))
    outcomes = await asyncio.gather(*readers, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes[:10]] == [asyncio.CancelledError] * 10
    assert outcomes[10:] == [(bench.token(1),)] * 10


async def test_a_reader_waits_no_longer_than_it_wants(bench: Bench) -> None:
    job_id = await bench.submit()
    assert await bench.queue.read(job_id, START, wait_seconds=0.05) == ()


async def test_behind_the_end_there_is_nothing_to_wait_for(bench: Bench) -> None:
    job_id = await bench.submit()
    await bench.finish(await bench.claim_one(), bench.token(1))
    assert await asyncio.wait_for(bench.queue.read(job_id, Cursor(1, 1), wait_seconds=60), 20) == ()


async def test_a_reader_does_not_hang_on_a_dead_worker(bench: Bench) -> None:
    bench.make(lease_seconds=0.05, max_attempts=1, watch_seconds=0.05)
    job_id = await bench.submit()
    claim = await bench.claim_one()
    await bench.emit(claim, bench.token(1))
    await bench.elapse(0.06)
    (end,) = await bench.queue.read(job_id, Cursor(1), wait_seconds=30)
    assert isinstance(end, EndEvent)
    assert end.error is not None
    assert end.error.code == "too_many_attempts"


@pytest.mark.parametrize("text", ["", "-1", "x", "1-", "1-0-0", "1\n", "\u0661", "9" * 30, "1 "])
def test_a_cursor_that_no_stream_can_have_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursorError):
        Cursor.parse(text)


# -- a worker's waits ---------------------------------------------------------------------------------


async def test_a_waiting_worker_is_woken_by_a_job(bench: Bench) -> None:
    waiting = asyncio.create_task(bench.queue.wait(MODEL, "w1", for_work=Priority.BATCH, timeout_seconds=30))
    await asyncio.sleep(0.05)
    await bench.submit()
    assert (await waiting).may_have_work


async def test_a_worker_does_not_wait_while_jobs_wait_for_it(bench: Bench) -> None:
    await bench.submit("a")
    await bench.submit("b", priority="batch")
    for _ in range(2):
        assert (
            await bench.queue.wait(MODEL, "w1", for_work=Priority.BATCH, timeout_seconds=30)
        ).may_have_work
        await bench.claim(1)
    assert not (
        await bench.queue.wait(MODEL, "w1", for_work=Priority.BATCH, timeout_seconds=0.05)
    ).may_have_work


async def test_a_waiting_worker_is_woken_by_a_job_that_comes_back(bench: Bench) -> None:
    ids = [await bench.submit(f"k{n}") for n in range(2)]
    claims = await bench.claim()
    assert not (
        await bench.queue.wait(MODEL, "w2", for_work=Priority.BATCH, timeout_seconds=0.05)
    ).may_have_work
    waiting = asyncio.create_task(bench.queue.wait(MODEL, "w2", for_work=Priority.BATCH, timeout_seconds=30))
    await asyncio.sleep(0.05)
    await bench.queue.release([(claim.job_id, claim.token) for claim in claims])
    assert (await waiting).may_have_work
    assert [claim.job_id for claim in await bench.claim(1, "w2")] == ids[:1]
    assert (await bench.queue.wait(MODEL, "w2", for_work=Priority.BATCH, timeout_seconds=30)).may_have_work
    assert [claim.job_id for claim in await bench.claim(1, "w2")] == ids[1:]


async def test_a_worker_full_of_batch_jobs_is_woken_by_a_better_job_only(bench: Bench) -> None:
    better = Priority.STANDARD
    await bench.submit("b", priority="batch")
    assert not (await bench.queue.wait(MODEL, "w1", for_work=better, timeout_seconds=0.05)).may_have_work
    waiting = asyncio.create_task(bench.queue.wait(MODEL, "w1", for_work=better, timeout_seconds=30))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await bench.submit("a")
    assert (await waiting).may_have_work
    assert (await bench.queue.wait(MODEL, "w1", for_work=better, timeout_seconds=30)).may_have_work


async def test_a_full_worker_is_woken_by_cancels_only(bench: Bench) -> None:
    job_id = await bench.submit("mine")
    await bench.claim_one("w1")
    await bench.submit("another")
    waiting = asyncio.create_task(bench.queue.wait(MODEL, "w1", for_work=None, timeout_seconds=30))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await bench.queue.cancel(job_id, "stop")
    wakeup = await waiting
    assert (wakeup.cancelled, wakeup.may_have_work) == ((job_id,), False)
    again = await bench.queue.wait(MODEL, "w1", for_work=None, timeout_seconds=0.05)
    assert again.cancelled == ()


# -- the fleet ----------------------------------------------------------------------------------------


async def test_workers_are_known_while_their_hearts_beat(bench: Bench) -> None:
    assert await bench.queue.workers() == ()
    await bench.queue.heartbeat(_card("w2"), ttl_seconds=60)
    await bench.queue.heartbeat(_card("w1"), ttl_seconds=0.05)
    assert await bench.queue.workers() == (_card("w1"), _card("w2"))
    await bench.elapse(0.06)
    assert await bench.queue.workers() == (_card("w2"),)
    assert 0.06 <= (await bench.queue.workers())[0].heartbeat_age_seconds < 30
    await bench.queue.farewell("w2")
    await bench.queue.farewell("nobody")
    assert await bench.queue.workers() == ()
    assert await bench.queue.models() == (MODEL,)


def _card(worker: str) -> WorkerCard:
    return WorkerCard(
        worker_id=worker,
        model=MODEL,
        state="ready",
        pid=1,
        host="h",
        version="0",
        max_model_len=8,
        max_running=4,
        running=0,
        waiting=0,
        kv_used_fraction=0.5,
        step_age_seconds=0.0,
        tokens_per_second=1.5,
        created_unix=1,
    )
