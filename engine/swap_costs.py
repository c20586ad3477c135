"""What swapping costs on this machine: measured once, at the start, through the runner itself."""

from __future__ import annotations

from headway.engine.interfaces import Runner
from headway.engine.preemption import PreemptionCosts
from headway.engine.values import BlockCopy, StepPlan

MEASURED_BLOCKS = 32
"""Enough that the time per block stands out from the time per copy."""
ROUNDS = 3
"""The fastest of so many counts: whatever else the machine does only ever adds."""


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
    out_one, in_one = _seconds(runner, 1)
    out_all, in_all = _seconds(runner, count) if count > 1 else (2 * out_one, 2 * in_one)
    others = max(1, count - 1)
    out_block = max(out_all - out_one, 1e-9) / others
    in_block = max(in_all - in_one, 1e-9) / others
    return PreemptionCosts(
        block_bytes=float(block_bytes),
        out_bytes_per_second=block_bytes / out_block,
        in_bytes_per_second=block_bytes / in_block,
        seconds_per_run=max(0.0, (out_one - out_block + in_one - in_block) / 2),
    )


def _seconds(runner: Runner, blocks: int) -> tuple[float, float]:
    """Time to copy so many neighbouring blocks out, and in again."""
    pairs = tuple(BlockCopy(index, index) for index in range(blocks))
    out = [runner.execute(StepPlan(0, (), swaps_out=pairs)).elapsed_seconds for _ in range(ROUNDS)]
    back = [runner.execute(StepPlan(0, (), swaps_in=pairs)).elapsed_seconds for _ in range(ROUNDS)]
    return min(out), min(back)
