"""What giving way costs on this machine: measured at the start, kept current by each copy and each step."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headway.engine.cost_model import CostModel
from headway.engine.interfaces import Runner
from headway.engine.preemption import PreemptionCosts
from headway.engine.values import BlockCopy, CopyTime, StepPlan, StepResult

MEASURED_BLOCKS = 32
"""Enough that the time per block stands out from the time per copy."""
ROUNDS = 3
"""The fastest of so many counts: whatever else the machine does only ever adds."""
NEWEST_SHARE: Final = 0.1
"""Weight of the newest copy: one in the way of something else changes little, ten of them are how it is."""
MOST_SURPRISE: Final = 4.0
"""One copy counts as at most so many times slower or faster than expected."""
MOST_SLOWDOWN: Final = 64.0
"""Against the start. A bus is shared or throttled; beyond that the clock is wrong."""


UNKNOWN_TOKEN_SECONDS: Final = 0.01
"""Recomputing a token, while the step model cannot tell: dear, since the cost of copies is measured."""


class SwapCosts:
    """The figures of ``measured`` as they are by now; what computing costs is the step model's to say."""

    def __init__(self, measured: PreemptionCosts, cost: CostModel) -> None:
        self.current = measured
        self._cost = cost

    @property
    def now(self) -> PreemptionCosts:
        """What both ways to give way cost."""
        _, b, _, q = self._cost.mixed.coefficients
        if not self._cost.mixed.is_trusted:
            b = max(b, UNKNOWN_TOKEN_SECONDS)
        return replace(self.current, seconds_per_token=b, seconds_per_token_squared=q)

    def observe(self, copy: CopyTime) -> None:
        """Learn from a copy that was timed: the geometric mean of old and new, the newest at its share."""
        costs = self.current
        expected = (costs.out_seconds if copy.is_out else costs.in_seconds)(copy.blocks)
        if not expected > 0.0:
            return
        surprise = min(max(copy.seconds / expected, 1 / MOST_SURPRISE), MOST_SURPRISE) ** NEWEST_SHARE
        overlap = costs.overlap + NEWEST_SHARE * (copy.is_beside - costs.overlap)
        if copy.is_out:
            self.current = replace(
                costs, out_slowdown=_within(costs.out_slowdown * surprise), overlap=overlap
            )
        else:
            self.current = replace(costs, in_slowdown=_within(costs.in_slowdown * surprise), overlap=overlap)


def _within(slowdown: float) -> float:
    return min(max(slowdown, 1 / MOST_SLOWDOWN), MOST_SLOWDOWN)


def measure_swap_costs(runner: Runner) -> PreemptionCosts | None:
    """Copy blocks out and in and time it; None where the runner cannot swap.

    For a start before any request: block 0 and its neighbours are overwritten with what they held. A plan
    without chunks waits for its swaps, so its time is theirs. From times of 1 and of n neighbouring blocks:
    bandwidth = (n - 1) blocks / (t_n - t_1), cost per run = t_1 - one block's share.
    """
    block_bytes = runner.block_bytes
    count = min(MEASURED_BLOCKS, runner.block_count, runner.host_slots)
    if count < 1:
        return None
    out_one, in_one, is_beside = _seconds(runner, 1)
    out_all, in_all, _ = _seconds(runner, count) if count > 1 else (2 * out_one, 2 * in_one, is_beside)
    others = max(1, count - 1)
    out_block = max(out_all - out_one, 1e-9) / others
    in_block = max(in_all - in_one, 1e-9) / others
    return PreemptionCosts(
        block_bytes=float(block_bytes),
        out_bytes_per_second=block_bytes / out_block,
        in_bytes_per_second=block_bytes / in_block,
        seconds_per_run=max(0.0, (out_one - out_block + in_one - in_block) / 2),
        overlap=float(is_beside),
    )


def _seconds(runner: Runner, blocks: int) -> tuple[float, float, bool]:
    """Time to copy so many neighbouring blocks out, and in again; whether it could run beside a step."""
    pairs = tuple(BlockCopy(index, index) for index in range(blocks))
    out = [runner.execute(StepPlan(0, (), swaps_out=pairs)) for _ in range(ROUNDS)]
    back = [runner.execute(StepPlan(0, (), swaps_in=pairs)) for _ in range(ROUNDS)]
    return _fastest(out), _fastest(back), any(copy.is_beside for copy in back[-1].copy_times)


def _fastest(results: list[StepResult]) -> float:
    return min(result.elapsed_seconds for result in results)
