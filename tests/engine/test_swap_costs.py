"""What a swap costs is measured through the runner, and believed only as far as it was seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.engine.cost_model import CostModel, StepShape
from headway.engine.preemption import PreemptionCosts
from headway.engine.scripted import ScriptedRunner
from headway.engine.swap_costs import MOST_SLOWDOWN, UNKNOWN_TOKEN_SECONDS, SwapCosts, measure_swap_costs
from headway.engine.values import CopyTime, StepPlan, StepResult

MEASURED = PreemptionCosts(block_bytes=100.0, out_bytes_per_second=1e5, in_bytes_per_second=1e5)
"""A millisecond per block, either way."""


def seconds(plan: StepPlan) -> float:
    """3 ms per copy, and per block 1 ms out and 2 ms in."""
    return 0.003 + 0.001 * len(plan.swaps_out) + 0.002 * len(plan.swaps_in)


def test_bandwidth_and_fixed_cost_are_told_apart() -> None:
    costs = measure_swap_costs(ScriptedRunner(host_slots=100, cost=seconds))
    assert costs is not None
    assert costs.out_bytes_per_second == pytest.approx(128 / 0.001)
    assert costs.in_bytes_per_second == pytest.approx(128 / 0.002)
    assert costs.seconds_per_run == pytest.approx(0.003)
    assert costs.swap_seconds(3) == pytest.approx(2 * 0.003 + 3 * 0.003)


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
    assert costs.swap_seconds(1) >= 0


class BesideRunner(ScriptedRunner):
    """Its copies run beside the steps, and it says so."""

    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        times = tuple(
            CopyTime(plan.step, is_out, len(copies), 0.001 * len(copies), is_beside=True)
            for is_out, copies in ((True, plan.swaps_out), (False, plan.swaps_in))
            if copies
        )
        return replace(result, copy_times=times)


def test_a_runner_that_copies_beside_its_steps_is_known_by_it() -> None:
    beside = measure_swap_costs(BesideRunner(host_slots=100, cost=seconds))
    at_once = measure_swap_costs(ScriptedRunner(host_slots=100, cost=seconds))
    assert beside is not None
    assert at_once is not None
    assert (beside.overlap, at_once.overlap) == (1.0, 0.0)


def copied(costs: SwapCosts, times: int, seconds_per_block: float, *, is_out: bool) -> float:
    """What a swap of 10 blocks costs after so many copies that took so long."""
    for step in range(times):
        costs.observe(CopyTime(step, is_out, 10, 10 * seconds_per_block))
    return costs.now.swap_seconds(10)


def test_costs_follow_a_bus_that_changes_and_each_direction_for_itself() -> None:
    costs = SwapCosts(MEASURED, CostModel())
    assert costs.now.swap_seconds(10) == pytest.approx(0.020)
    assert copied(costs, 200, 0.003, is_out=False) == pytest.approx(0.010 + 0.030)
    assert copied(costs, 200, 0.002, is_out=True) == pytest.approx(0.020 + 0.030)
    assert copied(costs, 200, 0.001, is_out=False) == pytest.approx(0.020 + 0.010), "and back"


def test_one_odd_copy_changes_little_and_no_clock_breaks_the_estimate() -> None:
    costs = SwapCosts(MEASURED, CostModel())
    assert copied(costs, 1, 1000.0, is_out=True) < 1.1 * 0.020
    assert copied(costs, 1, 0.0, is_out=True) == pytest.approx(0.020)
    assert copied(costs, 500, 1000.0, is_out=True) == pytest.approx((MOST_SLOWDOWN + 1) * 0.010)
    assert copied(costs, 500, 0.0, is_out=True) == pytest.approx((1 / MOST_SLOWDOWN + 1) * 0.010)


def test_nothing_is_learned_where_nothing_was_measured() -> None:
    free = PreemptionCosts(block_bytes=0.0, out_bytes_per_second=1.0, in_bytes_per_second=1.0)
    costs = SwapCosts(free, CostModel())
    assert copied(costs, 5, 1.0, is_out=True) == 0.0


def test_the_share_that_runs_beside_is_learned() -> None:
    costs = SwapCosts(MEASURED, CostModel())
    for step in range(100):
        costs.observe(CopyTime(step, True, 1, 0.001, is_beside=True))
    assert costs.now.overlap == pytest.approx(1.0, abs=1e-3)


def test_recomputing_is_dear_until_steps_were_measured_and_then_what_they_cost() -> None:
    model = CostModel()
    costs = SwapCosts(MEASURED, model)
    assert costs.now.seconds_per_token == UNKNOWN_TOKEN_SECONDS
    for tokens, context in ((16, 900), (64, 0), (32, 2000), (128, 500)) * 20:
        shape = StepShape(tokens, tokens + context, tokens * (context + tokens / 2))
        model.observe(shape, 0.005 + 1e-4 * tokens)
    assert costs.now.seconds_per_token == pytest.approx(1e-4, rel=0.1)
