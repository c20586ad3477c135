"""What a swap costs is measured through the runner, and believed only as far as it was seen."""

from __future__ import annotations

import pytest

from headway.engine.scripted import ScriptedRunner
from headway.engine.swap_costs import measure_swap_costs
from headway.engine.values import StepPlan


def seconds(plan: StepPlan) -> float:
    """3 ms per copy, and per block 1 ms out and 2 ms in."""
    return 0.003 + 0.001 * len(plan.swaps_out) + 0.002 * len(plan.swaps_in)


def test_bandwidth_and_fixed_cost_are_told_apart() -> None:
    costs = measure_swap_costs(ScriptedRunner(host_slots=100, cost=seconds))
    assert costs is not None
    assert costs.out_bytes_per_second == pytest.approx(128 / 0.001)
    assert costs.in_bytes_per_second == pytest.approx(128 / 0.002)
    assert costs.seconds_per_run == pytest.approx(0.003)
    assert costs.swap_seconds((0, 1, 2)) == pytest.approx(2 * 0.003 + 3 * 0.003)


@pytest.mark.parametrize("slots", [1, 2])
def test_a_tiny_host_pool_is_measured_too(slots: int) -> None:
    costs = measure_swap_costs(ScriptedRunner(host_slots=slots, cost=seconds))
    assert costs is not None
    assert costs.out_bytes_per_second > 0
    assert costs.seconds_per_run >= 0


def test_without_host_memory_there_is_nothing_to_measure() -> None:
    assert measure_swap_costs(ScriptedRunner()) is None


def test_a_clock_that_does_not_move_gives_no_division_by_zero() -> None:
    costs = measure_swap_costs(ScriptedRunner(host_slots=4))
    assert costs is not None
    assert costs.swap_seconds((0,)) >= 0
