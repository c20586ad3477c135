"""A failed step is done again chunk by chunk: what its result says must hold for the whole of it."""

from __future__ import annotations

import pytest

from headway.engine.isolation import execute_isolated
from headway.engine.scripted import ScriptedRunner
from headway.engine.values import Admitted, BlockCopy, Chunk, RequestKey, Sampling, StepPlan

KEY = RequestKey("r", 0)
KNOWN = Admitted(KEY, (1, 2), (), Sampling(temperature=0.0))
FAILURE = RuntimeError("the step failed")


def chunk_plan(step: int, *, swaps_in: tuple[BlockCopy, ...] = ()) -> StepPlan:
    chunk = Chunk(KEY, 0, (1, 2), (0,), samples=True)
    return StepPlan(step, (chunk,), admitted=(KNOWN,), swaps_in=swaps_in)


def isolated_copied_step(
    runner: ScriptedRunner, plan: StepPlan, known: Admitted | None = KNOWN
) -> int | None:
    return execute_isolated(runner.execute, plan, lambda _: known, FAILURE).result.copied_step


def test_swaps_of_earlier_plans_are_not_called_complete_before_they_are() -> None:
    runner = ScriptedRunner(block_count=4, block_size=4, host_slots=2, copy_delay=3)
    runner.execute(chunk_plan(1, swaps_in=(BlockCopy(0, 1),)))
    assert isolated_copied_step(runner, chunk_plan(2)) == 0
    assert isolated_copied_step(runner, chunk_plan(5)) == 5


def test_a_failed_step_that_swaps_waits_for_all_swaps() -> None:
    runner = ScriptedRunner(block_count=4, block_size=4, host_slots=2, copy_delay=3)
    runner.execute(chunk_plan(1, swaps_in=(BlockCopy(0, 1),)))
    assert isolated_copied_step(runner, chunk_plan(2, swaps_in=(BlockCopy(1, 2),))) == 2


def test_where_nothing_is_executed_no_swap_is_called_complete() -> None:
    runner = ScriptedRunner(block_count=4, block_size=4, host_slots=2, copy_delay=3)
    runner.execute(chunk_plan(1, swaps_in=(BlockCopy(0, 1),)))
    assert isolated_copied_step(runner, chunk_plan(2), known=None) == 0


def test_a_step_whose_every_chunk_fails_raises_what_it_failed_of() -> None:
    def fail(_: StepPlan) -> None:
        raise FAILURE

    with pytest.raises(RuntimeError, match="the step failed"):
        execute_isolated(fail, chunk_plan(1), lambda _: KNOWN, FAILURE)  # type: ignore[arg-type]  # it never returns
