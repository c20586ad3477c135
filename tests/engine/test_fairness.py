"""Virtual times: lifts, weights, forgetting, and that they never fall."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headway.engine.fairness import MOST_IDLE, VirtualTimes


def test_service_counts_by_weight() -> None:
    times = VirtualTimes({"big": 3.0})
    for tenant in ("big", "small"):
        times.join(tenant)
    for tenant in ("big", "small"):
        times.charge(tenant, 30.0)
    assert (times["big"].time, times["small"].time) == (10.0, 30.0)


def test_a_newcomer_starts_at_the_least_served_of_those_who_are_active() -> None:
    times = VirtualTimes({})
    times.join("a")
    times.join("b")
    times.charge("a", 50.0)
    times.charge("b", 80.0)
    assert times.join("c").time == 50.0


def test_who_was_idle_comes_back_without_a_saved_up_share() -> None:
    times = VirtualTimes({})
    times.join("a")
    times.join("b")
    times.leave("a")
    times.charge("b", 100.0)
    assert times.join("a").time == 100.0


def test_a_lift_never_lowers_a_time() -> None:
    times = VirtualTimes({})
    times.join("a")
    times.charge("a", 100.0)
    times.join("b")
    times.leave("a")
    times.charge("b", 10.0)
    assert times.join("a").time >= 100.0


def test_after_an_idle_time_a_newcomer_starts_where_the_last_one_left() -> None:
    times = VirtualTimes({})
    times.join("a")
    times.charge("a", 70.0)
    times.leave("a")
    assert times.join("b").time == 70.0


def test_a_weight_that_changes_leaves_what_was_counted() -> None:
    times = VirtualTimes({})
    times.join("a")
    times.charge("a", 10.0)
    times.set_weight("a", 5.0)
    assert times["a"].time == 10.0
    times.charge("a", 10.0)
    assert times["a"].time == 12.0


def test_a_step_charged_after_its_tenant_left_still_counts() -> None:
    times = VirtualTimes({})
    times.join("other")
    times.charge("other", 5.0)
    times.join("a")
    times.leave("a")
    times.charge("a", 40.0)
    assert times.join("a").time == 45.0


def test_tenants_that_come_and_go_below_a_weighty_one_that_stays_are_no_endless_list() -> None:
    times = VirtualTimes({"weighty": 1e6})
    times.join("weighty")
    times.join("greedy")
    times.charge("greedy", 1e6)
    times.leave("greedy")
    for place in range(MOST_IDLE + 100):
        times.join(f"t{place}")
        times.leave(f"t{place}")
        times.charge(f"t{place}", 100.0 + place)  # for a step that ran meanwhile
        times.charge("weighty", 100.0)
    assert len(times) <= MOST_IDLE + 2
    assert times.join("greedy").time == 1e6
    assert times["weighty"].time < 1.0


def test_tenants_that_came_and_went_are_forgotten() -> None:
    times = VirtualTimes({})
    for place in range(5000):
        tenant = f"t{place}"
        times.join(tenant)
        times.charge(tenant, 1.0 + random.Random(place).random())
        times.leave(tenant)
    assert len(times) <= 3


class TimesWalk(RuleBasedStateMachine):
    """Against the definition, spelled out."""

    def __init__(self) -> None:
        super().__init__()
        self.times = VirtualTimes({"a": 2.0})
        self.live: dict[str, int] = {}
        self.seen: dict[str, float] = {}
        self.charged_late: set[str] = set()

    @rule(tenant=st.sampled_from("abcd"))
    def join(self, tenant: str) -> None:
        active = [self.times[other].time for other, count in self.live.items() if count]
        before = self.seen.get(tenant, 0.0)
        time = self.times.join(tenant).time
        if not self.live.get(tenant) and active:
            assert time >= min(active)
            if tenant not in self.charged_late:
                assert time == max(min(active), before)
        self.charged_late.discard(tenant)
        self.live[tenant] = self.live.get(tenant, 0) + 1

    @rule(tenant=st.sampled_from("abcd"))
    def leave(self, tenant: str) -> None:
        if self.live.get(tenant):
            self.times.leave(tenant)
            self.live[tenant] -= 1

    @rule(tenant=st.sampled_from("abcd"), cost=st.floats(0, 100))
    def charge(self, tenant: str, cost: float) -> None:
        self.times.charge(tenant, cost)
        if not self.live.get(tenant):
            self.charged_late.add(tenant)

    @rule(weight=st.floats(0.1, 10))
    def weigh(self, weight: float) -> None:
        self.times.set_weight("a", weight)

    @invariant()
    def times_never_fall_and_nobody_active_is_below_the_floor(self) -> None:
        floor = self.times.floor()
        for tenant, count in self.live.items():
            if count:
                account = self.times[tenant]
                assert account.time >= max(floor, self.seen.get(tenant, 0.0)) - 1e-9
                assert account.live == count
                self.seen[tenant] = account.time
        active = [self.times[tenant].time for tenant, count in self.live.items() if count]
        if active:
            assert floor == pytest.approx(max(floor, min(active)))


TestTimesWalk = TimesWalk.TestCase
TestTimesWalk.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
