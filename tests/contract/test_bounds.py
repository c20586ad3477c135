"""What a lane refuses: it is bounded by jobs, tokens and predicted wait, and says which and for how long."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from headway.queueing.errors import QueueFullError
from headway.queueing.events import EndReason
from headway.queueing.worker_card import WorkerCard

if TYPE_CHECKING:
    from tests.contract.conftest import Bench

MODEL = "org/tiny"


async def test_a_lane_is_bounded_by_estimated_tokens(bench: Bench) -> None:
    bench.make(max_queued_tokens=1000)
    await bench.submit("k1", sampling={"max_tokens": 500})
    refused = await _refused(bench, sampling={"max_tokens": 500})
    assert refused.bound == "tokens"
    assert refused.retry_after_seconds > 0
    await bench.submit("k2", sampling={"max_tokens": 200})
    await bench.claim_one()
    await bench.submit("k3", sampling={"max_tokens": 500})


async def test_a_job_larger_than_the_bound_runs_when_nothing_else_waits(bench: Bench) -> None:
    """Otherwise it could never be accepted, however often it came back."""
    bench.make(max_queued_tokens=1000)
    await bench.submit("k1", sampling={"max_tokens": 100_000})
    assert (await _refused(bench)).bound == "tokens"


async def test_a_tenant_alone_cannot_fill_a_lane(bench: Bench) -> None:
    bench.make(max_queued_jobs=20)
    for n in range(18):
        await bench.submit(f"a-{n}", tenant="a")
    assert (await _refused(bench, tenant="a")).bound == "jobs"
    for n in range(2):
        await bench.submit(f"b-{n}", tenant="b")
    refused = await _refused(bench, tenant="c")
    assert (refused.bound, "20" in str(refused)) == ("jobs", True)


async def test_a_tenant_alone_cannot_fill_a_lane_with_tokens(bench: Bench) -> None:
    bench.make(max_queued_tokens=10_000)
    for n in range(9):
        await bench.submit(f"a-{n}", tenant="a", sampling={"max_tokens": 1000})
    assert (await _refused(bench, tenant="a", sampling={"max_tokens": 1})).bound == "tokens"
    await bench.submit("b", tenant="b", sampling={"max_tokens": 500})


async def test_a_lane_is_bounded_by_the_predicted_wait(bench: Bench) -> None:
    bench.make(max_wait_seconds=60)
    await bench.submit("k1", sampling={"max_tokens": 7000})
    await bench.submit("k2", sampling={"max_tokens": 7000})
    await bench.queue.heartbeat(_card(tokens_per_second=100.0), ttl_seconds=60)
    refused = await _refused(bench)
    assert refused.bound == "wait"
    # Some 14,000 tokens at 100 a second, less the limit.
    assert refused.retry_after_seconds == 60
    await bench.submit("i1", priority="interactive")
    await bench.submit("b1", tenant="b")
    depth = await bench.queue.depth(MODEL)
    assert depth.tokens_per_second == 100
    assert depth.wait_seconds == pytest.approx(depth.queued_tokens / 100)


async def test_a_wait_is_predicted_by_how_much_of_the_estimates_is_answered(bench: Bench) -> None:
    bench.make(max_wait_seconds=60)
    await bench.queue.heartbeat(_card(tokens_per_second=100.0), ttl_seconds=60)
    await bench.submit("k0", sampling={"max_tokens": 5000})
    await bench.finish(await bench.claim_one(), *(bench.token(at) for at in range(1, 51)))
    for n in range(5):
        await bench.submit(f"k{n + 1}", sampling={"max_tokens": 7000})
    wait = (await bench.queue.depth(MODEL)).wait_seconds
    assert wait is not None
    assert 3 < wait < 4


async def test_an_answer_that_was_cut_off_does_not_tell_how_long_answers_get(bench: Bench) -> None:
    """Else overload feeds itself: jobs that are given up make waits look short, and more are accepted."""
    await bench.queue.heartbeat(_card(tokens_per_second=100.0), ttl_seconds=60)
    for reason, tokens in ((EndReason.LENGTH, 50), (EndReason.DEADLINE, 0), (EndReason.CANCELLED, 3)):
        await bench.submit(sampling={"max_tokens": 5000})
        finish = bench.ending(await bench.claim_one(), *(bench.token(at) for at in range(1, tokens + 1)))
        await bench.queue.finish([replace(finish, end=replace(finish.end, reason=reason))])
    await bench.submit(sampling={"max_tokens": 5000})
    assert (await bench.queue.depth(MODEL)).wait_seconds == pytest.approx(0.5, rel=0.05)


async def test_without_a_living_worker_no_wait_is_predicted(bench: Bench) -> None:
    bench.make(max_wait_seconds=60)
    await bench.queue.heartbeat(_card(tokens_per_second=1.0), ttl_seconds=0.05)
    await bench.elapse(0.06)
    await bench.submit("k1", sampling={"max_tokens": 7000})
    await bench.submit("k2")
    depth = await bench.queue.depth(MODEL)
    assert (depth.tokens_per_second, depth.wait_seconds) == (0, None)


async def test_the_rates_of_all_workers_count_each_at_its_best(bench: Bench) -> None:
    await bench.queue.heartbeat(_card("w1", tokens_per_second=100.0), ttl_seconds=60)
    await bench.queue.heartbeat(_card("w2", tokens_per_second=50.0), ttl_seconds=60)
    await bench.queue.heartbeat(_card("w1", tokens_per_second=0.0), ttl_seconds=60)
    assert (await bench.queue.depth(MODEL)).tokens_per_second == pytest.approx(149)


async def press(bench: Bench, *, tokens_per_second: float = 100.0) -> None:
    """Two reports in a row while something waits: what the workers can do is known."""
    for _ in range(2):
        await bench.queue.heartbeat(_card(tokens_per_second=tokens_per_second), ttl_seconds=60)


async def test_a_job_that_by_prediction_ends_after_its_deadline_is_refused_at_the_door(bench: Bench) -> None:
    await bench.submit("k1", sampling={"max_tokens": 1000})
    await press(bench)
    await bench.submit("first", deadline_seconds=14.0)  # 10 s at 100 a second come later than it
    refused = await _refused(bench, priority="batch", deadline_seconds=8.0)
    assert refused.bound == "deadline"
    assert "deadline" in str(refused)
    assert 5 <= refused.retry_after_seconds <= 9
    await bench.submit("in-time", priority="batch", deadline_seconds=20.0)
    await bench.submit("wish", priority="batch", deadline_seconds=8.0, demotable=True)
    await bench.submit("without")


async def test_jobs_that_go_first_count_and_jobs_that_go_later_do_not(bench: Bench) -> None:
    await bench.submit("patient", sampling={"max_tokens": 100_000})
    await press(bench)
    await bench.submit("hurried", deadline_seconds=7.0)
    await bench.submit("better", priority="interactive", sampling={"max_tokens": 3000})
    assert (await _refused(bench, deadline_seconds=7.0)).bound == "deadline"


async def test_a_job_gets_its_share_of_the_rate_beside_those_that_run(bench: Bench) -> None:
    """200 tokens at 100 a second are 2 s alone, and 8 beside three others."""
    for n in range(4):
        await bench.submit(f"r{n}")
    for _ in range(4):
        await bench.claim_one()
    await bench.submit("waits", deadline_seconds=5.0, sampling={"max_tokens": 1})
    await press(bench)
    assert (await _refused(bench, deadline_seconds=8.0, sampling={"max_tokens": 200})).bound == "deadline"
    await bench.submit("short", deadline_seconds=8.0, sampling={"max_tokens": 20})
    await bench.submit("better", priority="interactive", deadline_seconds=1.0)  # nobody goes before it


async def test_a_newcomers_answers_are_thought_to_be_as_long_as_the_others(bench: Bench) -> None:
    """Who allows itself 10,000 tokens, as all do, and is never accepted would never show how many it uses."""
    for _ in range(3):
        await bench.submit(sampling={"max_tokens": 10_000})
        claim = await bench.claim_one()
        await bench.finish(claim, *(bench.token(at) for at in range(1, 21)))
    await bench.submit("runs")
    await bench.claim_one()
    await bench.submit("waits", priority="interactive", sampling={"max_tokens": 1})
    await press(bench)
    await bench.submit("new", tenant="new", deadline_seconds=6.0, sampling={"max_tokens": 10_000})


async def test_no_deadline_is_judged_by_a_rate_from_when_there_was_little_to_do(bench: Bench) -> None:
    """A burst after a quiet hour is not refused because one answer at a time is slow."""
    await bench.queue.heartbeat(_card(tokens_per_second=1.0), ttl_seconds=60)
    await bench.submit("k1", priority="interactive", sampling={"max_tokens": 1000})
    await bench.submit("k2", deadline_seconds=5.0)
    await bench.queue.heartbeat(_card(tokens_per_second=1.0), ttl_seconds=60)
    await bench.submit("k3", deadline_seconds=5.0)
    await bench.queue.heartbeat(_card(tokens_per_second=1.0), ttl_seconds=60)
    assert (await _refused(bench, deadline_seconds=5.0)).bound == "deadline"


async def test_while_jobs_wait_a_rate_is_the_mean_and_a_second_without_a_token_says_nothing(
    bench: Bench,
) -> None:
    await bench.submit("k1")
    await press(bench)
    for told, rate in ((50.0, 90.0), (0.0, 90.0), (90.0, 90.0), (190.0, 110.0)):
        await bench.queue.heartbeat(_card(tokens_per_second=told), ttl_seconds=60)
        assert (await bench.queue.depth(MODEL)).tokens_per_second == pytest.approx(rate)


async def test_a_burst_is_not_judged_by_what_workers_showed_with_little_to_do(bench: Bench) -> None:
    for worker in ("w1", "w2"):
        await bench.queue.heartbeat(_card(worker, tokens_per_second=5.0), ttl_seconds=60)
    await bench.submit("k1")
    for worker in ("w1", "w2", "w1"):
        await bench.queue.heartbeat(_card(worker, tokens_per_second=100.0), ttl_seconds=60)
    assert (await bench.queue.depth(MODEL)).tokens_per_second == pytest.approx(200)


async def test_a_full_lane_still_takes_jobs_back(bench: Bench) -> None:
    bench.make(max_queued_jobs=1)
    job_id = await bench.submit("k1")
    claim = await bench.claim_one()
    await bench.submit("k2")
    await bench.queue.release([(job_id, claim.token)])
    assert (await _refused(bench)).bound == "jobs"
    assert len(await bench.claim()) == 2


async def _refused(bench: Bench, **fields: Any) -> QueueFullError:
    with pytest.raises(QueueFullError) as refused:
        await bench.submit(**fields)
    return refused.value


def _card(worker: str = "w1", *, tokens_per_second: float) -> WorkerCard:
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
        tokens_per_second=tokens_per_second,
        created_unix=1,
    )
