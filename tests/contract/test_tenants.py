"""What tenants are promised and held to: exact rates, one bill for one job, nothing that leaks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from headway.queueing import settling
from headway.queueing.admission import Admission
from headway.queueing.claims import Claim
from headway.queueing.errors import (
    IdempotencyConflictError,
    InvalidJobError,
    InvalidTenantError,
    NotAllowedError,
    QueueFullError,
    QuotaExceededError,
)
from headway.queueing.events import JobState, Usage
from headway.queueing.messages import Job, Priority, decode_job
from headway.queueing.protocol import Queue, Submitted
from headway.queueing.quota_values import Held, QuotaLimit, Refusal, Reservation, TenantUsage
from headway.queueing.settling import keep_reservations, settle
from headway.queueing.tenants import EVERYONE, TenantLimits

if TYPE_CHECKING:
    from tests.contract.conftest import Bench

MODEL = "org/tiny"
ACME = "acme"


class Desk:
    """Posts acme's jobs through the admission, and looks into its account."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    async def limit(self, tenant: str = ACME, **limits: Any) -> None:
        await self.bench.queue.tenant_store.set(tenant, limits)

    def job(self, **fields: Any) -> Job:
        return Job.model_validate({"model": MODEL, "prompt": "x" * 40, "tenant": ACME, **fields})

    async def post(self, key: str | None = None, **fields: Any) -> Submitted:
        return await Admission(self.bench.queue).submit(self.job(**fields), key=key)

    async def refused(self, **fields: Any) -> QuotaExceededError:
        with pytest.raises(QuotaExceededError) as refused:
            await self.post(**fields)
        return refused.value

    async def usage(self, tenant: str = ACME) -> TenantUsage:
        limits = (await self.bench.queue.tenant_store.book()).limits_of(tenant)
        return await self.bench.queue.quota_store.usage(tenant, limits)

    async def remaining_tokens(self) -> int:
        tokens = (await self.usage()).standing.tokens
        assert tokens is not None
        return tokens.remaining

    async def remaining_requests(self) -> int:
        requests = (await self.usage()).standing.requests
        assert requests is not None
        return requests.remaining

    async def answer(self, claim: Claim, prompt_tokens: int, tokens: int) -> None:
        """Finish a claim with so many tokens."""
        events = [self.bench.token(at) for at in range(1, tokens + 1)]
        usage, usual = Usage(prompt_tokens, tokens), self.bench.ending(claim, *events)
        end, result = replace(usual.end, usage=usage), replace(usual.result, usage=usage)
        await self.bench.queue.finish([replace(usual, end=end, result=result)])


@pytest.fixture
def desk(bench: Bench) -> Desk:
    return Desk(bench)


# -- rates --------------------------------------------------------------------------------------------


async def test_of_200_parallel_submits_a_limit_of_50_admits_exactly_50(desk: Desk, bench: Bench) -> None:
    await desk.limit(rpm=50)
    outcomes = await asyncio.gather(*(desk.post() for _ in range(200)), return_exceptions=True)
    refused = [each for each in outcomes if isinstance(each, QuotaExceededError)]
    assert (len(outcomes) - len(refused), len(refused)) == (50, 150)
    assert {error.limit for error in refused} == {QuotaLimit.RPM}
    assert len(await bench.claim(200)) == 50
    assert await desk.remaining_requests() == 0


async def test_tokens_are_reserved_by_prompt_and_longest_answer_and_settled_by_what_was_used(
    desk: Desk, bench: Bench
) -> None:
    await desk.limit(tpm=1000)
    submitted = await desk.post(sampling={"max_tokens": 200, "n": 2})
    assert submitted.standing is not None
    assert submitted.standing.tokens is not None
    assert submitted.standing.tokens.remaining == 1000 - 10 - 400
    await desk.answer(await bench.claim_one(), prompt_tokens=12, tokens=3)
    assert await settle(bench.queue, MODEL) == 1
    assert await desk.remaining_tokens() == 1000 - 15
    assert (await desk.usage()).spent_tokens == 15


async def test_an_answer_that_took_more_than_was_reserved_is_charged_for_it(desk: Desk, bench: Bench) -> None:
    await desk.limit(tpm=1000, rpm=10)
    await desk.post(sampling={"max_tokens": 5})
    await desk.answer(await bench.claim_one(), prompt_tokens=900, tokens=5)
    await settle(bench.queue, MODEL)
    assert await desk.remaining_tokens() == 95
    refused = await desk.refused(sampling={"max_tokens": 200})
    assert refused.limit is QuotaLimit.TPM
    assert 0 < refused.retry_after_seconds <= 10
    assert "tenants set acme --tpm" in str(refused)


async def test_a_job_larger_than_the_limit_waits_for_a_full_bucket_and_owes_the_rest(
    desk: Desk, bench: Bench
) -> None:
    await desk.limit(tpm=100)
    await desk.post(sampling={"max_tokens": 500})
    assert (await desk.refused(sampling={"max_tokens": 1})).limit is QuotaLimit.TPM
    await desk.answer(await bench.claim_one(), prompt_tokens=10, tokens=240)
    await settle(bench.queue, MODEL)
    refused = await desk.refused(sampling={"max_tokens": 80}, prompt="x" * 80)
    assert refused.retry_after_seconds > 140  # 150 too many at 100 a minute, and a full bucket


async def test_a_settled_job_is_settled_once_whoever_repeats_it(desk: Desk, bench: Bench) -> None:
    await desk.limit(tpm=1000)
    await desk.post(sampling={"max_tokens": 100})
    await desk.answer(await bench.claim_one(), prompt_tokens=10, tokens=5)
    (end,) = await bench.queue.settlements(MODEL)
    taken_in = await asyncio.gather(*(settle(bench.queue, MODEL) for _ in range(3)))
    assert max(taken_in) == 1
    assert (await desk.usage()).spent_tokens == 15
    assert end.reserved != ""
    assert await settle(bench.queue, MODEL) == 0
    assert await bench.queue.settlements(MODEL) == ()


# -- what counts jobs ---------------------------------------------------------------------------------


async def test_concurrency_counts_until_the_end_and_not_a_moment_longer(desk: Desk, bench: Bench) -> None:
    await desk.limit(concurrency=2)
    await desk.post()
    await desk.post()
    refused = await desk.refused()
    assert (refused.limit, refused.retry_after_seconds) == (QuotaLimit.CONCURRENCY, 1.0)
    await desk.answer(await bench.claim_one(), 1, 1)
    await desk.post()  # no keeper has been here: the end itself is enough
    await desk.refused()


async def test_parallel_submits_never_exceed_the_concurrency(desk: Desk, bench: Bench) -> None:
    await desk.limit(concurrency=7)
    outcomes = await asyncio.gather(*(desk.post() for _ in range(40)), return_exceptions=True)
    assert sum(isinstance(each, Submitted) for each in outcomes) == 7
    assert (await desk.usage()).in_flight == 7


async def test_waiting_jobs_are_bounded_and_a_start_makes_room(desk: Desk, bench: Bench) -> None:
    await desk.limit(queued_jobs=2)
    await desk.post()
    await desk.post()
    assert (await desk.refused()).limit is QuotaLimit.QUEUED_JOBS
    await bench.claim_one()
    await desk.post()
    usage = await desk.usage()
    assert (usage.in_flight, usage.waiting_jobs) == (3, 2)


async def test_a_start_behind_reservations_without_jobs_makes_room(desk: Desk, bench: Bench) -> None:
    await desk.limit(queued_jobs=35)
    for n in range(34):
        await reserve(bench, f"org--tiny:0:never{n}", tokens=1)
    await desk.post()
    assert (await desk.refused()).limit is QuotaLimit.QUEUED_JOBS
    await bench.claim_one()
    await desk.post()
    usage = await desk.usage()
    assert (usage.in_flight, usage.waiting_jobs) == (36, 35)


async def test_waiting_tokens_are_bounded(desk: Desk, bench: Bench) -> None:
    await desk.limit(queued_tokens=200)
    await desk.post(sampling={"max_tokens": 100})
    assert (await desk.refused(sampling={"max_tokens": 100})).limit is QuotaLimit.QUEUED_TOKENS
    await desk.post(sampling={"max_tokens": 50})
    await bench.claim(2)
    await desk.post(sampling={"max_tokens": 500})  # alone it may be larger than the limit


async def test_the_daily_budget_is_held_by_what_runs_and_spent_by_what_was_used(
    desk: Desk, bench: Bench
) -> None:
    await desk.limit(daily_tokens=300)
    await desk.post(sampling={"max_tokens": 200})
    assert (await desk.refused(sampling={"max_tokens": 200})).limit is QuotaLimit.DAILY_TOKENS
    await desk.answer(await bench.claim_one(), prompt_tokens=10, tokens=20)
    await desk.post(sampling={"max_tokens": 200})
    await desk.answer(await bench.claim_one(), prompt_tokens=60, tokens=200)
    await settle(bench.queue, MODEL)
    refused = await desk.refused(sampling={"max_tokens": 20})
    assert refused.limit is QuotaLimit.DAILY_TOKENS
    assert 0 < refused.retry_after_seconds <= 86_400
    assert (await desk.usage()).spent_tokens == 290


async def test_one_large_job_overdraws_no_day_whatever_the_rate_lets_through(
    desk: Desk, bench: Bench
) -> None:
    await desk.limit(tpm=100, daily_tokens=1000)
    refused = await desk.refused(sampling={"max_tokens": 500, "n": 2})
    assert refused.limit is QuotaLimit.DAILY_TOKENS
    assert "1000 are left, and it may take 1010, 10 of them for its prompt): ask for fewer" in str(refused)
    await desk.post(sampling={"max_tokens": 495, "n": 2})  # all of the day, ten times the bucket
    usage = await desk.usage()
    assert (usage.held_tokens, usage.waiting_tokens, await desk.remaining_tokens()) == (1000, 1000, 0)
    assert (await desk.refused(sampling={"max_tokens": 1})).limit is QuotaLimit.TPM
    await desk.limit(tpm=None)
    refused = await desk.refused(sampling={"max_tokens": 1})
    assert (refused.limit, "(0 are left" in str(refused)) == (QuotaLimit.DAILY_TOKENS, True)


async def test_a_job_larger_than_the_bucket_gives_back_just_what_it_filled(desk: Desk, bench: Bench) -> None:
    await desk.limit(tpm=100)
    job = await desk.post(sampling={"max_tokens": 490})
    await desk.limit(tpm=1000)
    assert await desk.remaining_tokens() in range(900, 903)
    await bench.queue.cancel(job.job_id, "too long")
    await settle(bench.queue, MODEL)
    await desk.post(sampling={"max_tokens": 990})
    assert await desk.remaining_tokens() in range(3)


async def test_a_job_that_ends_without_a_worker_costs_no_tokens_but_was_a_request(
    desk: Desk, bench: Bench
) -> None:
    await desk.limit(rpm=10, tpm=1000, concurrency=1)
    job = await desk.post(sampling={"max_tokens": 200})
    await bench.queue.cancel(job.job_id, "changed my mind")
    await settle(bench.queue, MODEL)
    usage = await desk.usage()
    assert (usage.in_flight, usage.waiting_jobs, usage.held_tokens, usage.spent_tokens) == (0, 0, 0, 0)
    assert (await desk.remaining_requests(), await desk.remaining_tokens()) == (9, 1000)


async def test_an_aborted_answer_is_billed_by_its_committed_tokens_and_its_prompt(
    desk: Desk, bench: Bench
) -> None:
    await desk.limit(tpm=1000)
    job = await desk.post(sampling={"max_tokens": 200})
    claim = await bench.claim_one()
    await bench.emit(claim, bench.token(1), bench.token(2), bench.token(3))
    await bench.queue.release([(job.job_id, claim.token)])
    await bench.queue.cancel(job.job_id, "enough")
    await settle(bench.queue, MODEL)
    assert (await desk.usage()).spent_tokens == 10 + 3


# -- permissions and defaults -------------------------------------------------------------------------


async def test_a_model_or_class_that_is_not_allowed_is_refused_by_name(desk: Desk) -> None:
    await desk.limit(models=["other"], classes=["batch"])
    with pytest.raises(NotAllowedError, match="model org/tiny, but other") as refused:
        await desk.post()
    assert refused.value.param == "model"
    await desk.limit(models=None)
    with pytest.raises(NotAllowedError, match="priority standard, but batch") as refused:
        await desk.post()
    assert refused.value.param == "priority"
    await desk.post(priority="batch")


async def test_longest_answer_and_deadline_are_filled_in_where_the_job_asks_for_more_or_says_nothing(
    desk: Desk, bench: Bench
) -> None:
    await desk.limit(max_tokens=64, deadline_seconds=30.0)
    for asked in ({}, {"max_tokens": 1000, "min_tokens": 100}, {"max_tokens": 8}):
        await desk.post(sampling=asked)
    await desk.post(deadline_seconds=90)
    claims = await bench.claim()
    sampling = [decode_job(claim.body).sampling for claim in claims]
    assert sorted((each.max_tokens or 0, each.min_tokens) for each in sampling) == [
        (8, 0),
        (64, 0),
        (64, 0),
        (64, 64),
    ]
    assert sorted(claim.deadline_ms - claim.created_ms for claim in claims) == [
        30_000,
        30_000,
        30_000,
        90_000,
    ]


async def test_a_tenant_without_quotas_needs_no_reservation(desk: Desk, bench: Bench) -> None:
    await desk.limit(weight=3.0, max_tokens=10)
    job = await desk.post()
    assert job.standing is None
    assert (await bench.queue.status(job.job_id)).reserved == ""
    assert await bench.queue.quota_store.reserving() == ()


async def test_limits_of_everyone_hold_for_each_tenant_without_its_own(desk: Desk) -> None:
    await desk.limit(EVERYONE, rpm=1)
    await desk.limit(rpm=2)
    for _ in range(2):
        await desk.post()
    for tenant in ("one", "two"):
        await desk.post(tenant=tenant)
        assert (await desk.refused(tenant=tenant)).limit is QuotaLimit.RPM
    await desk.refused()


# -- idempotency --------------------------------------------------------------------------------------


async def test_a_repeat_after_a_lost_reply_is_the_same_job_and_billed_once(desk: Desk, bench: Bench) -> None:
    await desk.limit(rpm=1, tpm=1000, concurrency=1)
    first = await desk.post(idempotency_key="order-7", sampling={"max_tokens": 100})
    again = await desk.post(idempotency_key="order-7", sampling={"max_tokens": 100})
    assert (again.job_id, again.created) == (first.job_id, False)
    assert (await desk.usage()).in_flight == 1
    await desk.answer(await bench.claim_one(), prompt_tokens=10, tokens=5)
    await settle(bench.queue, MODEL)
    for requests in (1, 2):  # with nothing left, and with room for another
        await desk.limit(rpm=requests)
        late = await desk.post(idempotency_key="order-7", sampling={"max_tokens": 100})
        assert (late.job_id, late.created) == (first.job_id, False)
        usage = await desk.usage()
        assert (usage.in_flight, usage.spent_tokens) == (0, 15)
    assert await desk.remaining_requests() == 1


async def test_a_repeat_of_a_key_passes_whatever_is_left(desk: Desk, bench: Bench) -> None:
    await desk.limit(concurrency=1)
    first = await desk.post("k1")
    await desk.answer(await bench.claim_one(), 1, 1)
    await desk.post("k2")
    assert await desk.post("k1") == first.__class__(first.job_id, created=False)
    await desk.refused()


async def test_another_body_is_a_conflict_also_when_nothing_is_left(desk: Desk) -> None:
    await desk.limit(rpm=1)
    await desk.post(idempotency_key="i")
    with pytest.raises(IdempotencyConflictError):
        await desk.post(idempotency_key="i", prompt="something else")
    await desk.refused(idempotency_key="new")


async def test_parallel_repeats_are_one_job_and_one_reservation(desk: Desk, bench: Bench) -> None:
    await desk.limit(rpm=1, concurrency=1)
    made = await asyncio.gather(*(desk.post(idempotency_key="i") for _ in range(20)))
    assert len({each.job_id for each in made}) == 1
    assert sum(each.created for each in made) == 1
    assert len(await bench.claim()) == 1
    assert (await desk.usage()).in_flight == 1


async def test_another_body_under_the_key_is_a_conflict_that_costs_nothing(desk: Desk) -> None:
    await desk.limit(rpm=5, tpm=1000)
    await desk.post(idempotency_key="i", sampling={"max_tokens": 100})
    with pytest.raises(IdempotencyConflictError):
        await desk.post(idempotency_key="i", prompt="something else")
    assert (await desk.remaining_requests(), (await desk.usage()).in_flight) == (4, 1)


async def test_a_repeat_is_compared_by_what_was_asked_whatever_the_defaults_are_now(desk: Desk) -> None:
    await desk.limit(max_tokens=50)
    first = await desk.post(idempotency_key="i")
    await desk.limit(max_tokens=60, deadline_seconds=20.0)
    assert (await desk.post(idempotency_key="i")).job_id == first.job_id
    await desk.limit(max_tokens=None, deadline_seconds=None)
    assert (await desk.post(idempotency_key="i")).job_id == first.job_id
    with pytest.raises(IdempotencyConflictError):
        await desk.post(idempotency_key="i", sampling={"max_tokens": 50})


async def test_a_job_posted_before_its_tenant_had_limits_is_found_by_its_key(desk: Desk) -> None:
    first = await desk.post(idempotency_key="i")
    await desk.limit(rpm=1)
    assert (await desk.post(idempotency_key="i")).job_id == first.job_id
    assert await desk.remaining_requests() == 1


# -- what leaks nothing -------------------------------------------------------------------------------


async def test_a_refused_job_gives_its_reservation_back(desk: Desk, bench: Bench) -> None:
    bench.make(max_queued_jobs=1)
    await desk.limit(rpm=10, tpm=5000, concurrency=5)
    await desk.post()
    with pytest.raises(QueueFullError):
        await desk.post()
    with pytest.raises(InvalidJobError):
        await desk.post(key="not a key")
    usage = await desk.usage()
    assert (usage.in_flight, await desk.remaining_requests()) == (1, 9)


async def reserve(bench: Bench, job_id: str, tokens: int = 100) -> Reservation | Refusal:
    """The first half of a submit, by somebody who dies before the second."""
    limits = (await bench.queue.tenant_store.book()).limits_of(ACME)
    return await bench.queue.quota_store.reserve(
        ACME, job_id, "n1", tokens=tokens, prompt_tokens=10, limits=limits
    )


async def test_a_reservation_that_nobody_followed_up_lapses(desk: Desk, bench: Bench) -> None:
    bench.make(reservation_seconds=0.3)
    await desk.limit(rpm=1, tpm=500, concurrency=1)
    assert isinstance(await reserve(bench, "org--tiny:0:k1"), Reservation)
    assert await keep_reservations(bench.queue, 0.3) == 0
    await bench.elapse(0.35)
    assert await keep_reservations(bench.queue, 0.3) == 0
    usage = await desk.usage()
    assert (usage.in_flight, usage.waiting_jobs, usage.held_tokens) == (0, 0, 0)
    await desk.post()


async def test_a_replay_with_the_same_key_goes_on_with_the_reservation(desk: Desk, bench: Bench) -> None:
    await desk.limit(rpm=1, tpm=500, concurrency=1)
    await reserve(bench, "org--tiny:0:k1")
    submitted = await desk.post(key="k1")
    assert submitted.created
    assert (await bench.queue.status(submitted.job_id)).reserved == "n1"
    assert await desk.remaining_requests() == 0


async def test_a_job_that_was_posted_after_its_reservation_lapsed_is_billed_in_full(
    desk: Desk, bench: Bench
) -> None:
    bench.make(reservation_seconds=0.2)
    await desk.limit(rpm=10, tpm=500)
    await reserve(bench, "org--tiny:0:k1")
    await bench.elapse(0.25)
    assert await desk.remaining_tokens() == 500
    await bench.queue.submit(desk.job(), key="k1", reserved="n1")
    await desk.answer(await bench.claim_one(), prompt_tokens=10, tokens=30)
    await settle(bench.queue, MODEL)
    assert (await desk.remaining_tokens(), (await desk.usage()).spent_tokens) == (460, 40)
    assert await desk.remaining_requests() == 9


async def test_reservations_of_living_jobs_are_kept_waiting_or_running(desk: Desk, bench: Bench) -> None:
    bench.make(reservation_seconds=0.3)
    await desk.limit(concurrency=5)
    await desk.post()
    await desk.post()
    await bench.claim_one()
    for _ in range(4):
        await bench.elapse(0.12)
        await keep_reservations(bench.queue, 0.3)
    usage = await desk.usage()
    assert (usage.in_flight, usage.waiting_jobs) == (2, 1)


async def orphan(desk: Desk, bench: Bench, count: int) -> None:
    """So many reservations of posters that died, and one whose job was posted under another."""
    for at in range(count):
        assert isinstance(await reserve(bench, f"org--tiny:0:orphan{at}"), Reservation)
    assert isinstance(await reserve(bench, "org--tiny:0:other"), Reservation)
    await bench.queue.submit(desk.job(), key="other", reserved="n2")


async def test_orphaned_reservations_keep_no_living_job_from_being_kept(desk: Desk, bench: Bench) -> None:
    bench.make(reservation_seconds=1.5)
    await desk.limit(concurrency=500)
    await orphan(desk, bench, 3)
    await asyncio.gather(*(desk.post() for _ in range(220)))
    await bench.elapse(0.6)
    assert await keep_reservations(bench.queue, 1.5) == 220
    await bench.elapse(1.0)
    assert (await desk.usage()).in_flight == 220


async def test_a_pass_that_takes_long_keeps_no_reservation_twice(
    desk: Desk, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those kept first are due again before it is through: it would never end, and others' would lapse."""
    keep_some = settling._keep_some

    async def slowly(queue: Queue, tenant: str, reservations: Sequence[Held]) -> int:
        await bench.elapse(0.5)
        if bench.url is None:  # by a clock of its own, beside the one that the pass is timed by
            await asyncio.sleep(0.5)
        return await keep_some(queue, tenant, reservations)

    monkeypatch.setattr(settling, "_keep_some", slowly)
    bench.make(reservation_seconds=3.0)
    await desk.limit(concurrency=500)
    await asyncio.gather(*(desk.post() for _ in range(220)))
    await bench.elapse(1.2)
    assert await keep_reservations(bench.queue, 3.0) == 220


async def test_jobs_whose_reservations_lapsed_are_counted_again(desk: Desk, bench: Bench) -> None:
    bench.make(reservation_seconds=1.5)
    await desk.limit(concurrency=500, tpm=100_000)
    await asyncio.gather(*(desk.post(sampling={"max_tokens": 10}) for _ in range(130)))
    await orphan(desk, bench, 101)
    await bench.elapse(1.6)
    for _ in range(3):
        await desk.usage()  # each gives some back
    assert ((await desk.usage()).in_flight, await desk.remaining_tokens()) == (0, 100_000)
    assert await keep_reservations(bench.queue, 1.5) == 130
    usage = await desk.usage()
    assert (usage.in_flight, usage.held_tokens) == (130, 130 * 20)
    assert await desk.remaining_tokens() == 100_000 - 130 * 20


async def test_a_job_that_ended_without_a_word_is_settled_by_its_record(desk: Desk, bench: Bench) -> None:
    bench.make(reservation_seconds=0.3)
    await desk.limit(tpm=500)
    await desk.post(sampling={"max_tokens": 100})
    await desk.answer(await bench.claim_one(), prompt_tokens=10, tokens=30)
    (end,) = await bench.queue.settlements(MODEL)
    await bench.queue.settled(MODEL, [end.entry_id])  # as if the server had lost it
    await bench.elapse(0.15)
    assert await keep_reservations(bench.queue, 0.3) == 1
    assert (await desk.usage()).spent_tokens == 40


async def test_of_several_keepers_one_acts(desk: Desk, bench: Bench) -> None:
    bench.make(reservation_seconds=1.0)
    await desk.limit(concurrency=5)
    await desk.post()
    await bench.elapse(0.5)
    assert sorted(await asyncio.gather(*(keep_reservations(bench.queue, 1.0) for _ in range(5)))) == [
        0,
        0,
        0,
        0,
        1,
    ]


# -- configuration ------------------------------------------------------------------------------------


async def test_limits_are_merged_field_by_field_and_taken_away_by_none(bench: Bench) -> None:
    store = bench.queue.tenant_store
    assert await store.set(ACME, {"rpm": 50, "weight": 2.0}) == TenantLimits(rpm=50, weight=2.0)
    whole = await store.set(ACME, {"tpm": 1000, "rpm": None, "classes": ["batch"]})
    assert whole == TenantLimits(tpm=1000, weight=2.0, classes=(Priority.BATCH,))
    assert (await store.book()).tenants == {ACME: whole}
    assert await store.remove(ACME) is True
    assert await store.remove(ACME) is False
    assert (await store.book()).tenants == {}


@pytest.mark.parametrize(
    ("tenant", "changes", "field"),
    [
        (ACME, {"rpm": 0}, "rpm"),
        (ACME, {"rpm": "50"}, "rpm"),
        (ACME, {"tmp": 5}, "tmp"),
        (ACME, {"weight": -1.0}, "weight"),
        (ACME, {"classes": ["urgent"]}, "classes"),
        (ACME, {"models": []}, "models"),
        (EVERYONE, {"weight": 2.0}, "weight"),
        ("a b", {"rpm": 1}, ""),
    ],
)
async def test_limits_that_cannot_be_are_refused_with_their_field(
    bench: Bench, tenant: str, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidTenantError) as refused:
        await bench.queue.tenant_store.set(tenant, changes)
    assert refused.value.field == field
    assert (await bench.queue.tenant_store.book()).tenants == {}


async def test_a_file_is_applied_once_and_replaces_what_an_earlier_one_named(bench: Bench) -> None:
    store = bench.queue.tenant_store
    await store.set("by-hand", {"rpm": 7})
    one, two = TenantLimits(rpm=1), TenantLimits(rpm=2)
    assert await store.apply({"a": one, "b": two}, "v1") == ("a", "b")
    await store.set("a", {"rpm": 9})
    assert await store.apply({"a": one, "b": two}, "v1") == ()
    assert (await store.book()).tenants["a"].rpm == 9  # stays over a restart with the same file
    assert await store.apply({"a": two}, "v2") == ("a", "b")
    assert (await store.book()).tenants == {"by-hand": TenantLimits(rpm=7), "a": two}


async def test_keys_are_kept_as_digests_and_stand_for_one_tenant(bench: Bench) -> None:
    store = bench.queue.tenant_store
    assert (await store.book()).is_open
    key = await store.add_key(ACME, "laptop", "hw-secret")
    book = await store.book()
    assert not book.is_open
    assert (book.tenant_of("hw-secret"), book.tenant_of("hw-other")) == (ACME, None)
    assert "secret" not in repr(book)
    assert await store.revoke_key(key.digest) is True
    assert await store.revoke_key(key.digest) is False
    assert (await store.book()).tenant_of("hw-secret") is None
    with pytest.raises(InvalidTenantError):
        await store.add_key(EVERYONE, "", "hw-x")


async def test_the_end_state_after_a_mixed_day_is_zero(desk: Desk, bench: Bench) -> None:
    """Whatever happened to the jobs, nothing stays in flight, waiting or held."""
    await desk.limit(rpm=100, tpm=100_000, concurrency=50, queued_jobs=50, daily_tokens=100_000)
    jobs = [await desk.post(f"k{at}") for at in range(12)]
    claims = await bench.claim(8)
    for claim in claims[:3]:
        await desk.answer(claim, 10, 4)
    await bench.queue.release([(claim.job_id, claim.token) for claim in claims[3:5]])
    await bench.emit(claims[5], bench.token(1))
    for job in jobs:
        await bench.queue.cancel(job.job_id, "closing")
    for claim in claims[5:]:
        await bench.finish(claim, bench.token(1))
    await settle(bench.queue, MODEL)
    usage = await desk.usage()
    assert (usage.in_flight, usage.waiting_jobs, usage.waiting_tokens, usage.held_tokens) == (0, 0, 0, 0)
    assert {(await bench.queue.status(job.job_id)).state for job in jobs} == {JobState.FINISHED}
