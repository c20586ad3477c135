"""What tenants are promised: their share of the claims by weight, whatever the others have waiting."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from headway.queueing.events import Cursor, EndReason, TokenEvent
from headway.queueing.messages import Priority, decode_job

if TYPE_CHECKING:
    from tests.contract.conftest import Bench

    from headway.queueing.claims import Claim

MODEL = "org/tiny"


async def test_shares_follow_the_weights(bench: Bench) -> None:
    await bench.queue.set_weights(MODEL, {"gold": 3, "half": 0.5})
    for n in range(40):
        for tenant in ("gold", "plain", "half"):
            await bench.submit(f"{tenant}-{n}", tenant=tenant)
    served = Counter(_tenants(await bench.claim(36)))
    assert served == {"gold": 24, "plain": 8, "half": 4}


async def test_weights_count_from_the_next_claim_on(bench: Bench) -> None:
    for n in range(40):
        for tenant in ("a", "b"):
            await bench.submit(f"{tenant}-{n}", tenant=tenant)
    assert Counter(_tenants(await bench.claim(10))) == {"a": 5, "b": 5}
    await bench.queue.set_weights(MODEL, {"a": 4})
    assert Counter(_tenants(await bench.claim(20))) == {"a": 16, "b": 4}
    await bench.queue.set_weights(MODEL, {"b": 4})
    assert Counter(_tenants(await bench.claim(10))) == {"a": 2, "b": 8}


async def test_a_long_backlog_never_buries_anothers_job(bench: Bench) -> None:
    for n in range(300):
        await bench.submit(f"a-{n:03}", tenant="a")
    await bench.claim(20)
    for n in range(5):
        await bench.submit(f"b-{n}", tenant="b")
        assert "b" in _tenants(await bench.claim(2))


async def test_idling_earns_nothing(bench: Bench) -> None:
    """Who comes late starts level with the others: it does not first take what they had before."""
    for n in range(60):
        await bench.submit(f"a-{n:02}", tenant="a")
    await bench.claim(30)
    for n in range(20):
        await bench.submit(f"b-{n:02}", tenant="b")
    assert Counter(_tenants(await bench.claim(20))) == {"a": 10, "b": 10}


async def test_a_tenant_that_comes_back_still_owes_what_it_overdrew(bench: Bench) -> None:
    """Leaving for a moment does not wipe the slate: who had an expensive job pays as if it had stayed."""
    for n in range(30):
        await bench.submit(f"a-{n:02}", tenant="a", sampling={"max_tokens": 100})
    await bench.submit("b-0", tenant="b", sampling={"max_tokens": 1000})
    assert _tenants(await bench.claim(2)) == ["a", "b"]
    await bench.submit("b-1", tenant="b", sampling={"max_tokens": 1000})
    following = _tenants(await bench.claim(12))
    assert following.index("b") >= 7


async def test_what_was_not_used_is_given_back(bench: Bench) -> None:
    """Both tenants use 10 tokens a job, whatever they allow themselves: so both have the same share."""
    for n in range(30):
        await bench.submit(f"modest-{n:02}", tenant="modest", sampling={"max_tokens": 10})
        await bench.submit(f"wide-{n:02}", tenant="wide", sampling={"max_tokens": 5000})
    served: Counter[str] = Counter()
    for _ in range(40):
        claim = await bench.claim_one()
        served[_tenant(claim)] += 1
        await bench.finish(claim, *(bench.token(at) for at in range(1, 11)))
    assert abs(served["modest"] - served["wide"]) <= 2


async def test_a_worker_may_say_what_its_service_was_worth(bench: Bench) -> None:
    for n in range(10):
        for tenant in ("a", "b"):
            await bench.submit(f"{tenant}-{n}", tenant=tenant, sampling={"max_tokens": 10})
    before = await _times(bench)
    claims = await bench.claim(2)
    for claim in claims:
        await bench.finish(claim, bench.token(1), served_tokens=500.5 if _tenant(claim) == "a" else 0.25)
    after = await _times(bench)
    assert after["a"] - before["a"] == pytest.approx(500.5)
    assert after["b"] - before["b"] == pytest.approx(0.25)


async def test_a_job_that_moves_on_is_paid_for_once(bench: Bench) -> None:
    """Handed back, lost with its worker, finished: its tenant pays for prompt and answer, no more."""
    bench.make(lease_seconds=0.05)
    await bench.submit("a-0", tenant="a", prompt="x" * 400)
    await bench.submit("a-1", tenant="a", prompt="x" * 400)
    start = (await _times(bench))["a"]
    first = await bench.claim_one()
    await bench.emit(first, TokenEvent(Cursor(20), 0, "…", tuple(range(20))))
    await bench.queue.release([(first.job_id, first.token)])
    released = (await _times(bench))["a"] - start
    second = await bench.claim_one()
    await bench.emit(second, TokenEvent(Cursor(50), 0, "…", tuple(range(30))))
    await bench.elapse(0.06)
    await bench.queue.reap(MODEL)
    lost = (await _times(bench))["a"] - start
    prompt = released - 20
    assert 100 < prompt < 120, "the body's bytes by four"
    assert lost == pytest.approx(prompt + 50)
    third = await bench.claim_one()
    assert third.job_id == first.job_id
    await bench.finish(third, served_tokens=10)
    assert (await _times(bench))["a"] - start == pytest.approx(prompt + 60)


async def test_inside_a_tenant_the_earliest_deadline_goes_first(bench: Bench) -> None:
    bench.make(patience_seconds=600)
    await bench.submit("patient-1")
    await bench.submit("late", deadline_seconds=3000)
    await bench.submit("soon", deadline_seconds=100)
    await bench.submit("sooner", deadline_seconds=50)
    await bench.submit("patient-2")
    keys = [claim.job_id.rpartition(":")[2] for claim in await bench.claim()]
    assert keys == ["sooner", "soon", "patient-1", "patient-2", "late"]


async def test_each_band_has_its_own_shares(bench: Bench) -> None:
    """Interactive service is not held against a tenant's batch jobs, nor the other way round."""
    for n in range(20):
        await bench.submit(f"ai-{n:02}", tenant="a", priority="interactive")
    await bench.claim(20)
    for n in range(20):
        for tenant in ("a", "b"):
            await bench.submit(f"{tenant}-{n:02}", tenant=tenant, priority="batch")
    assert Counter(_tenants(await bench.claim(20))) == {"a": 10, "b": 10}


async def test_an_aged_backlog_is_shared_too(bench: Bench) -> None:
    """One tenant's old batch jobs do not take all the places of the ageing tier from another's."""
    bench.make(batch_age_seconds=0.05)
    for n in range(20):
        await bench.submit(f"a-{n:02}", tenant="a", priority="batch")
    await bench.submit("b-0", tenant="b", priority="batch")
    await bench.submit("b-1", tenant="b", priority="batch")
    await bench.elapse(0.1)
    for n in range(40):
        await bench.submit(f"i-{n:02}", priority="interactive")
    assert Counter(_tenants(await bench.claim(16))) == {"default": 12, "a": 2, "b": 2}


async def test_a_newcomer_does_not_hold_up_the_aged_ones_of_its_band(bench: Bench) -> None:
    """The next in fair order may be young; an old one behind it is still served ahead of better bands."""
    bench.make(batch_age_seconds=0.1)
    await bench.submit("a-0", tenant="zz", priority="batch")
    await bench.elapse(0.15)
    await bench.submit("b-0", tenant="aa", priority="batch")
    for n in range(8):
        await bench.submit(f"i-{n}", priority="interactive")
    assert _tenants(await bench.claim(1)) == ["zz"]


async def test_a_cancelled_job_costs_its_tenant_nothing(bench: Bench) -> None:
    for n in range(4):
        await bench.submit(f"a-{n}", tenant="a")
    before = await _times(bench)
    await bench.queue.cancel("org--tiny:0:a-0", "no")
    assert await _times(bench) == before
    (backlog,) = await bench.queue.tenants(MODEL)
    assert (backlog.tenant, backlog.priority, backlog.jobs) == ("a", Priority.STANDARD, 3)


async def test_the_last_cancel_of_a_tenant_ends_its_turn(bench: Bench) -> None:
    await bench.submit("a-0", tenant="a")
    await bench.submit("b-0", tenant="b", deadline_seconds=0.05)
    await bench.queue.cancel("org--tiny:0:a-0", "no")
    await bench.elapse(0.06)
    await bench.queue.reap(MODEL)
    assert await bench.queue.tenants(MODEL) == ()
    assert (await bench.queue.status("org--tiny:0:b-0")).reason is EndReason.DEADLINE
    depth = await bench.queue.depth(MODEL)
    assert (sum(depth.queued.values()), depth.queued_tokens) == (0, 0)


def _tenant(claim: Claim) -> str:
    return decode_job(claim.body).tenant


def _tenants(claims: list[Claim]) -> list[str]:
    return list(map(_tenant, claims))


async def _times(bench: Bench) -> dict[str, float]:
    return {each.tenant: each.virtual_time for each in await bench.queue.tenants(MODEL)}
