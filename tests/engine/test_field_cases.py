"""What users of other engines ran into, as named tests: the cases that concern scheduling.

The numbers are those of ``field_cases.md``, where every case has its line.
"""

from __future__ import annotations

import random

import pytest
from tests.engine.bench import Bench, in_step

from headway.engine.blocks import BlockLedger
from headway.engine.errors import EngineFullError, RequestError
from headway.engine.fair import FairPolicy
from headway.engine.limits import StepLimits
from headway.engine.policy import Priority
from headway.engine.scheduler import Scheduler
from headway.engine.timeline import Happening
from headway.engine.values import FinishReason, RequestKey, RequestSpec, Sampled, Sampling, StepResult


@pytest.mark.parametrize("policy", [Priority, FairPolicy])
def test_case_1_a_better_class_takes_a_place_when_all_places_are_taken(
    policy: type[Priority | FairPolicy],
) -> None:
    bench = Bench(policy())
    for name in ("low0", "low1"):
        bench.add(name, max_tokens=50, priority=2)
    bench.step()
    bench.add("urgent", priority=0)
    assert "urgent" in in_step(bench.step())
    bench.run()
    assert bench.ends == dict.fromkeys(("low0", "low1", "urgent"), FinishReason.LENGTH)
    assert bench.tokens == {"low0": 50, "low1": 50, "urgent": 8}


def test_case_1_equals_never_take_each_others_place() -> None:
    bench = Bench()
    for place in range(6):
        bench.add(f"r{place}", tenant=f"t{place % 3}", max_tokens=20)
    bench.run()
    assert bench.happened(Happening.RECOMPUTED) == []


def test_case_2_a_class_shows_in_the_time_to_the_first_token() -> None:
    bench = Bench()
    for place in range(12):
        bench.add(f"r{place}", max_tokens=10, priority=2 if place % 2 else 0)
    bench.run()
    order = bench.happened(Happening.PREFILLED)
    assert set(order[:6]) == {f"r{place}" for place in range(0, 12, 2)}


def test_case_2_a_class_shows_in_the_share_of_a_saturated_machine() -> None:
    bench = Bench()
    for place in range(40):
        bench.add(f"{'night' if place % 2 else 'chat'}{place}", max_tokens=10, priority=2 * (place % 2))
    for _ in range(60):
        bench.step()
    by_class = {
        kind: sum(count for name, count in bench.tokens.items() if kind in name) for kind in ("chat", "night")
    }
    assert by_class["chat"] > 100
    assert by_class["night"] == 0


def test_case_3_who_gave_way_comes_back_before_newcomers_and_at_most_three_times() -> None:
    bench = Bench(sequences=1)
    bench.add("victim", prompt=8, max_tokens=40, priority=2)
    bench.step()
    for place in range(8):
        bench.add(f"urgent{place}", max_tokens=2, priority=0)
        bench.add(f"newcomer{place}", priority=2)
        for _ in range(6):
            bench.step()
    bench.run()
    assert bench.happened(Happening.RECOMPUTED).count("victim") <= 3
    events = [(e.key.request_id, e.happening) for e in bench.scheduler.timeline.events]
    first = events.index(("victim", Happening.RESUMED))
    assert not any(("newcomer" in name and what is Happening.STARTED) for name, what in events[:first])


@pytest.mark.parametrize("seed", range(3))
def test_case_4_a_stream_of_better_jobs_starves_nobody_and_the_lines_stay_in_order(seed: int) -> None:
    rng = random.Random(seed)
    policy = FairPolicy(age_limit_seconds=0.5, quantum_tokens=0.0)
    bench = Bench(policy, sequences=2)
    for step in range(800):
        while policy.waiting < 6:
            bench.add(f"chat{len(bench.scheduler.timeline.events)}", tenant=rng.choice("abc"), priority=0)
        if step % 40 == 0:
            bench.add(f"night{step}", tenant=f"t{step}", priority=rng.randint(1, 2))
        bench.scheduler.set_weight(rng.choice("abc"), rng.choice((0.5, 1.0, 4.0)))
        bench.step()
        check_order(policy, bench.now)
    waits = bench.waits("night")
    assert len(waits) > 15
    # A start of theirs comes at every second start at least; a service takes 8 or 9 steps of 10 ms.
    assert 0.5 <= max(waits) <= 0.5 + 2 * 0.09 + 0.01


def check_order(policy: FairPolicy, now: float) -> None:
    """Best class first, in it the least served tenant, in that the least slack; everybody once."""
    line = list(policy.candidates(now, lambda _: 0))
    assert sorted(request.serial for request in line) == sorted(request.serial for request in policy)
    # An aged request may go ahead of all.
    classes = [(r.spec.priority, policy.times(r.spec.priority)[r.spec.tenant].position) for r in line[1:]]
    assert classes == sorted(classes)
    for tenant in {(request.spec.tenant, request.spec.priority) for request in line}:
        ranks = [r.rank for r in line if (r.spec.tenant, r.spec.priority) == tenant]
        assert ranks == sorted(ranks)


def test_case_5_a_cold_request_is_displaced_by_hot_prefixes_only_so_often() -> None:
    bench = Bench(sequences=1, blocks=64, is_cached=True)
    bench.add("warm", prompt=40, max_tokens=1, tenant="hot")
    bench.step()
    bench.add("cold", prompt=41, max_tokens=1, tenant="cold", prompt_token_ids=(2,) * 41)
    for place in range(40):
        bench.add(f"hot{place}", prompt=41, max_tokens=1, tenant="hot")
    bench.run()
    assert bench.happened(Happening.STARTED).index("cold") <= 10


def test_case_7_a_request_that_would_be_stale_is_dropped_not_preempted() -> None:
    bench = Bench(sequences=1)
    bench.add("stale", max_tokens=50, deadline_seconds=0.05)
    bench.add("next")
    bench.run()
    assert bench.ends["stale"] is FinishReason.DEADLINE
    assert bench.happened(Happening.RECOMPUTED) == []


def test_case_8_the_line_is_bounded() -> None:
    scheduler = Scheduler(BlockLedger(64, 4), StepLimits(max_waiting=3), FairPolicy(), frozenset())
    for place in range(3):
        scheduler.add(RequestSpec(f"r{place}", 0, (1,), Sampling(), 1))
    with pytest.raises(EngineFullError):
        scheduler.add(RequestSpec("r3", 0, (1,), Sampling(), 1))


def test_case_9_a_timeout_is_the_end() -> None:
    bench = Bench()
    bench.add("a", max_tokens=50, deadline_seconds=0.03)
    bench.add("b", max_tokens=20)
    bench.run()
    assert bench.ends == {"a": FinishReason.DEADLINE, "b": FinishReason.LENGTH}


def test_case_9_who_times_out_while_it_waits_to_come_back_never_does() -> None:
    bench = Bench(sequences=1)
    bench.add("victim", max_tokens=40, priority=2, deadline_seconds=0.05)
    bench.step()
    bench.add("urgent", priority=0, max_tokens=20)
    bench.run()
    assert bench.ends == {"victim": FinishReason.DEADLINE, "urgent": FinishReason.LENGTH}
    assert bench.happened(Happening.RECOMPUTED) == ["victim"]
    assert bench.happened(Happening.RESUMED) == []


def test_case_10_two_live_requests_with_one_id_are_refused() -> None:
    bench = Bench()
    bench.add("a")
    with pytest.raises(RequestError, match="is live"):
        bench.add("a")
    bench.run()
    assert bench.tokens["a"] == 8


def test_case_11_a_late_result_never_lands_on_a_resubmitted_id() -> None:
    bench = Bench()
    bench.add("a")
    plan = bench.scheduler.plan(0.0)
    assert plan is not None
    bench.scheduler.cancel("a", FinishReason.CANCELLED)
    bench.add("a", epoch=1)
    late = StepResult(plan.step, (Sampled(RequestKey("a", 0), 99),), 0.010)
    assert bench.scheduler.apply(plan, late, 0.0) == ()
    bench.run()
    assert bench.tokens["a"] == 8


def test_case_11_a_late_end_never_ends_a_resubmitted_id() -> None:
    bench = Bench()
    bench.add("a")
    bench.scheduler.cancel("a", FinishReason.CANCELLED)
    bench.add("a", epoch=1)
    bench.scheduler.finish(RequestKey("a", 0))
    assert bench.scheduler.announce(RequestKey("a", 0)) is None
    bench.run()
    assert bench.tokens["a"] == 8


def test_case_12_a_completion_that_comes_twice_counts_once() -> None:
    bench = Bench()
    bench.add("a")
    plan = bench.scheduler.plan(0.0)
    assert plan is not None
    result = StepResult(plan.step, (Sampled(RequestKey("a", 0), 7),), 0.010)
    assert len(bench.scheduler.apply(plan, result, 0.0)) == 1
    assert bench.scheduler.apply(plan, result, 0.0) == ()
    assert bench.scheduler.load.steps == 1


def test_case_15_nothing_waits_behind_a_head_that_cannot_start() -> None:
    bench = Bench(blocks=8, sequences=8)
    bench.add("running", prompt=4, max_tokens=12)
    bench.step()
    bench.add("head", prompt=16, max_tokens=8)
    bench.add("small", prompt=1, max_tokens=2)
    bench.run()
    assert bench.tokens == {"running": 12, "head": 8, "small": 2}


def test_case_30_calls_for_unknown_requests_leave_nothing() -> None:
    bench = Bench()
    for place in range(100):
        bench.scheduler.cancel(f"ghost{place}", FinishReason.CANCELLED)
        bench.scheduler.set_priority(f"ghost{place}", 0)
    assert not bench.scheduler.has_work
    assert not bench.scheduler.timeline.events


def test_case_32_after_a_storm_of_cancels_traffic_goes_on() -> None:
    bench = Bench(sequences=8)
    for place in range(200):
        bench.add(f"r{place}", tenant=f"t{place % 7}", priority=place % 3)
        if place % 3 == 0:
            bench.step()
        bench.scheduler.cancel(f"r{place}", FinishReason.CANCELLED)
    bench.run()
    assert set(bench.ends.values()) == {FinishReason.CANCELLED}
    assert bench.scheduler.load.kv_blocks_used == 0
    bench.add("after")
    bench.run()
    assert bench.ends["after"] is FinishReason.LENGTH


def test_case_35_a_huge_prompt_does_not_hold_up_short_ones() -> None:
    bench = Bench(blocks=4096, sequences=8)
    bench.add("book", prompt=10_000, max_tokens=1)
    for place in range(5):
        bench.add(f"short{place}", prompt=20, max_tokens=1)
    for _ in range(6):
        bench.step()
    assert all(f"short{place}" in bench.ends for place in range(5))


def test_case_39_a_deferred_duplicate_waits_only_while_somebody_computes_for_it() -> None:
    bench = Bench(sequences=4, is_cached=True)
    bench.add("first", prompt=80, max_tokens=2)
    bench.add("second", prompt=80, max_tokens=2)
    assert in_step(bench.step()) == {"first"}
    bench.scheduler.cancel("first", FinishReason.CANCELLED)
    assert in_step(bench.step()) == {"second"}
    bench.run()
    assert bench.tokens["second"] == 2


def test_a_job_that_was_starved_keeps_its_place_once_it_has_it() -> None:
    bench = Bench(FairPolicy(age_limit_seconds=0.2), sequences=1)
    bench.add("night", priority=2, max_tokens=30)
    for place in range(80):
        bench.add(f"chat{place}", priority=0, max_tokens=4)
        bench.step()
    assert bench.ends["night"] is FinishReason.LENGTH
    assert bench.happened(Happening.RECOMPUTED) == []


def test_a_held_request_does_not_hold_the_lift_down() -> None:
    policy = FairPolicy()
    bench = Bench(policy, sequences=4)
    bench.add("slow", tenant="slow", max_tokens=50)
    bench.add("busy", tenant="busy", max_tokens=50)
    bench.step()
    bench.scheduler.hold("slow")
    for _ in range(20):
        bench.step()
    bench.add("new", tenant="new")
    assert policy.times(1)["new"].time == policy.times(1)["busy"].time
    bench.scheduler.unhold("slow")
    assert policy.times(1)["slow"].time == policy.times(1)["busy"].time


def test_case_36_cached_tokens_cost_nothing_and_are_counted_once() -> None:
    policy = FairPolicy()
    bench = Bench(policy, is_cached=True)
    bench.add("stays", tenant="a", prompt=1, max_tokens=100)
    for name in ("first", "second"):
        bench.add(name, tenant="a", prompt=40, max_tokens=1)
        while name not in bench.ends:
            bench.step()
    # 40 tokens the first time, then the 4 that no hit may cover, and the answer of the one that stays.
    assert policy.times(1)["a"].time == 40 + 4 + bench.tokens["stays"]


def test_a_cached_prefix_that_a_preemption_lost_is_not_charged_either() -> None:
    policy = FairPolicy()
    bench = Bench(policy, sequences=1, is_cached=True)
    bench.add("first", prompt=40, max_tokens=1, priority=2)
    bench.run()
    bench.add("second", prompt=40, max_tokens=4, priority=2)
    bench.step()
    bench.ledger.reset_cache("new weights")
    bench.add("urgent", priority=0)
    bench.run()
    assert bench.happened(Happening.RECOMPUTED) == ["second"]
    bench.add("last", prompt=1, max_tokens=1, priority=2)
    assert policy.times(2)["default"].time == 40 + 4 + 3
