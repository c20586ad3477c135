"""A tenant below its share does not wait for the end of somebody who is above it: places go round."""

from __future__ import annotations

import itertools

import pytest
from tests.engine.bench import Bench, in_step

from headway.engine.fair import FairPolicy
from headway.engine.policy import Fcfs, Policy
from headway.engine.timeline import Happening


def crowded(policy: Policy | None = None, priority: int = 1) -> Bench:
    """One tenant has all eight places and twelve more requests waiting."""
    bench = Bench(policy or FairPolicy(), sequences=8)
    for place in range(20):
        bench.add(f"heavy{place}", max_tokens=100, tenant="heavy", priority=priority)
    bench.step()
    return bench


def test_a_tenant_without_a_place_starts_soon_and_nobody_gives_way_for_it() -> None:
    bench = crowded()
    bench.step()
    bench.add("light", tenant="light")
    steps = [bench.step() for _ in range(3)]
    # Equal at first, it goes before the other as soon as that one was served once more; then it has its turn.
    assert [("light" in in_step(plan)) for plan in steps] == [False, False, True]
    assert all(len(plan.chunks) == 8 for plan in steps)
    bench.run(2000)
    assert bench.happened(Happening.RECOMPUTED) == []


def test_places_go_round_so_nobody_is_left_out_twice_in_a_row() -> None:
    bench = crowded()
    bench.add("light", tenant="light", max_tokens=60)
    bench.step()
    steps = [in_step(bench.step()) for _ in range(40)]
    running = set.union(*steps)
    assert len(running) == 9
    assert all(len(step) == 8 for step in steps)
    for before, after in itertools.pairwise(steps):
        assert before | after == running


@pytest.mark.parametrize("policy", [FairPolicy, Fcfs])
def test_one_tenant_alone_runs_no_more_than_a_step_holds(policy: type[FairPolicy | Fcfs]) -> None:
    bench = crowded(policy())
    for _ in range(20):
        bench.step()
        assert bench.scheduler.load.running == 8


def test_with_first_come_first_served_nobody_has_a_share() -> None:
    bench = crowded(Fcfs())
    bench.add("light", tenant="light")
    assert not any("light" in in_step(bench.step()) for _ in range(20))


def test_who_has_its_share_waits_like_everybody() -> None:
    bench = Bench(FairPolicy(weights={"gold": 3.0}), sequences=8)
    for place in range(10):
        for tenant in ("gold", "plain"):
            bench.add(f"{tenant}{place}", max_tokens=50, tenant=tenant)
    bench.step()
    started = [name[:4] for name in bench.happened(Happening.STARTED)]
    assert sorted({(name, started.count(name)) for name in started}) == [("gold", 6), ("plai", 2)]
    for _ in range(20):
        bench.step()
        assert bench.scheduler.load.running == 8


def test_one_more_runs_for_each_eight_places() -> None:
    bench = crowded()
    for place in range(5):
        bench.add(f"light{place}", tenant=f"light{place}", max_tokens=50)
    for _ in range(20):
        bench.step()
        assert bench.scheduler.load.running <= 9


def test_a_better_class_gives_no_turns_to_a_lower_one() -> None:
    bench = Bench(sequences=8)
    bench.add("chat", priority=0, max_tokens=30)
    for place in range(20):
        bench.add(f"heavy{place}", max_tokens=100, tenant="heavy")
    bench.step()
    bench.add("light", tenant="light")
    while "chat" not in bench.ends:
        assert "light" not in in_step(bench.step())
    assert any("light" in in_step(bench.step()) for _ in range(3))
