"""Swapped requests: bytes come back as they went, and nothing is used before its copy is complete."""

from __future__ import annotations

import random

import pytest
from tests.simulation.memory_world import MemoryWorld

from headway.engine.block_table import BlockTable
from headway.engine.blocks import BlockLedger
from headway.engine.errors import InvariantError
from headway.engine.host_pool import HostPool
from headway.engine.prefix_cache import PrefixCache
from headway.engine.scripted import ScriptedRunner
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling, StepPlan

PROMPT = (5, 6, 7, 8, 9)


class Rig:
    """One ledger, one pool and a runner whose swaps take ``copy_delay`` more steps."""

    def __init__(self, *, blocks: int = 4, slots: int = 4, copy_delay: int = 0) -> None:
        self.ledger = BlockLedger(blocks, 2, PrefixCache(2))
        self.pool = HostPool(self.ledger, slots)
        self.runner = ScriptedRunner(
            block_count=blocks, block_size=2, host_slots=slots, copy_delay=copy_delay
        )
        self.step = 0

    def execute(self, plan: StepPlan) -> None:
        result = self.runner.execute(plan)
        assert result.copied_step is not None
        self.ledger.complete(plan.step, result.copied_step)
        self.pool.complete(result.copied_step)

    def compute(self, table: BlockTable, tokens: tuple[int, ...], name: str = "a") -> None:
        self.step += 1
        key = RequestKey(name, 0)
        blocks = self.ledger.extend(table, len(tokens), self.step)
        chunk = Chunk(key, 0, tokens, blocks, samples=False)
        self.execute(StepPlan(self.step, (chunk,), (Admitted(key, tokens, (), Sampling()),)))

    def bytes(self, table: BlockTable) -> list[tuple[int, ...]]:
        return [self.runner.block(block) for block in table.blocks]


def test_case_41_a_swap_brings_back_the_very_same_bytes() -> None:
    rig = Rig()
    table = rig.ledger.open_table(3)
    rig.compute(table, PROMPT)
    before = rig.bytes(table)
    parked, out = rig.pool.swap_out(table, 5, 2)
    rig.execute(StepPlan(2, (), swaps_out=out))
    other = rig.ledger.open_table(4)
    rig.step = 2
    rig.compute(other, (1, 2, 3, 4, 1, 2, 3, 4), "other")
    rig.ledger.close_table(other)
    back, copies = rig.pool.swap_in(parked, 3, 4)
    rig.execute(StepPlan(4, (), swaps_in=copies))
    assert rig.bytes(back) == before
    rig.ledger.check([back])
    rig.pool.check([])
    assert rig.pool.free_slots == 4


def test_case_25_blocks_are_held_until_their_copy_is_complete() -> None:
    rig = Rig(blocks=6, copy_delay=2)
    table = rig.ledger.open_table(2)
    rig.compute(table, PROMPT[:4])
    rig.step += 1
    parked, out = rig.pool.swap_out(table, 4, rig.step)
    assert (rig.ledger.swapping_blocks, rig.ledger.available_blocks) == (2, 4)
    other = rig.ledger.open_table(2)
    key = RequestKey("other", 0)
    chunk = Chunk(key, 0, (1, 2, 3, 4), rig.ledger.extend(other, 4, rig.step), samples=False)
    rig.execute(StepPlan(rig.step, (chunk,), (Admitted(key, (1,), (), Sampling()),), swaps_out=out))
    assert rig.ledger.swapping_blocks == 2, "the copy is still under way"
    assert not rig.pool.can_swap_in(parked, 2), "there is room, but its bytes are not all there"
    with pytest.raises(InvariantError, match="blocks taken with"):
        rig.ledger.extend(other, 9)
    rig.execute(StepPlan(rig.step + 1, ()))
    assert (rig.ledger.swapping_blocks, rig.ledger.available_blocks) == (0, 4)
    assert rig.pool.can_swap_in(parked, 2)


def test_blocks_that_are_still_cached_are_shared_again_and_not_copied() -> None:
    rig = Rig()
    table = rig.ledger.open_table(3)
    rig.compute(table, PROMPT)
    rig.ledger.publish(table, rig.ledger.cache.chain(list(PROMPT), "a"), 5)
    parked, out = rig.pool.swap_out(table, 5, 2)
    assert len(out) == 3, "cached blocks may be evicted, so all of them go"
    rig.execute(StepPlan(2, (), swaps_out=out))
    _, copies = rig.pool.swap_in(parked, 3, 3)
    assert len(copies) == 1, "nothing was evicted, so only the partial block comes back"


def test_a_block_that_was_evicted_and_published_again_is_not_taken_for_the_old_one() -> None:
    rig = Rig(blocks=3)
    table = rig.ledger.open_table(3)
    rig.compute(table, PROMPT)
    chain = rig.ledger.cache.chain(list(PROMPT), "a")
    rig.ledger.publish(table, chain, 5)
    parked, out = rig.pool.swap_out(table, 5, 2)
    rig.execute(StepPlan(2, (), swaps_out=out))
    other = rig.ledger.open_table(3)
    rig.step = 2
    rig.compute(other, (1, 2, 3, 4, 5), "other")
    rig.ledger.publish(other, rig.ledger.cache.chain([1, 2, 3, 4, 5], "a"), 5)
    rig.ledger.close_table(other)
    back, copies = rig.pool.swap_in(parked, 3, 4)
    assert len(copies) == 3
    rig.execute(StepPlan(4, (), swaps_in=copies))
    words = [word for block in rig.bytes(back) for word in block]
    assert [word & 0xFFFF for word in words[:5]] == list(PROMPT)


def test_a_request_with_a_step_in_flight_is_not_swapped_out() -> None:
    rig = Rig()
    table = rig.ledger.open_table(2)
    rig.ledger.extend(table, 4, step=1)
    with pytest.raises(InvariantError, match="fenced"):
        rig.pool.swap_out(table, 4, 2)
    rig.ledger.complete(1)
    rig.pool.swap_out(table, 4, 2)


def test_no_step_may_compute_on_blocks_that_have_not_arrived() -> None:
    rig = Rig(copy_delay=1)
    table = rig.ledger.open_table(2)
    rig.compute(table, PROMPT[:4])
    parked, out = rig.pool.swap_out(table, 4, 2)
    rig.execute(StepPlan(2, (), swaps_out=out))
    back, copies = rig.pool.swap_in(parked, 2, 3)
    assert rig.ledger.is_arriving(back)
    assert rig.ledger.is_fenced(back)
    rig.execute(StepPlan(3, (), swaps_in=copies))
    assert not rig.ledger.is_arriving(back)


def test_case_12_a_completion_that_comes_twice_changes_nothing() -> None:
    rig = Rig()
    table = rig.ledger.open_table(2)
    rig.compute(table, PROMPT[:4])
    parked, _ = rig.pool.swap_out(table, 4, 2)
    for step in (2, 2, 1):
        rig.ledger.complete(step)
        rig.pool.complete(step)
        rig.ledger.check([])
        rig.pool.check([parked])
        assert (rig.ledger.free_blocks, rig.pool.free_slots) == (4, 2)


def test_a_cancel_while_copies_are_under_way_frees_the_slots_after_them() -> None:
    rig = Rig(slots=2)
    table = rig.ledger.open_table(2)
    rig.compute(table, PROMPT[:4])
    parked, _ = rig.pool.swap_out(table, 4, 2)
    rig.pool.drop(parked)
    assert rig.pool.free_slots == 0, "the copy would write into somebody else's slots"
    rig.ledger.complete(2)
    rig.pool.complete(2)
    assert (rig.pool.free_slots, rig.ledger.free_blocks) == (2, 4)


def test_what_does_not_fit_on_the_host_is_refused_and_changes_nothing() -> None:
    rig = Rig(slots=1)
    table = rig.ledger.open_table(2)
    rig.compute(table, PROMPT[:4])
    assert not rig.pool.can_swap_out(4)
    with pytest.raises(InvariantError, match="2 blocks swapped out with 1 slots"):
        rig.pool.swap_out(table, 4, 2)
    rig.ledger.check([table])
    rig.pool.check([])
    assert not rig.pool.can_swap_out(0), "a request without KV is recomputed for nothing"


def test_case_37_kv_of_old_weights_that_comes_back_is_shown_to_nobody() -> None:
    rig = Rig()
    table = rig.ledger.open_table(3)
    rig.compute(table, PROMPT)
    chain = rig.ledger.cache.chain(list(PROMPT), "a")
    rig.ledger.publish(table, chain, 5)
    parked, out = rig.pool.swap_out(table, 5, 2)
    rig.execute(StepPlan(2, (), swaps_out=out))
    rig.ledger.reset_cache("new weights")
    back, copies = rig.pool.swap_in(parked, 3, 3)
    assert len(copies) == 3, "no device block of the old weights is found again"
    rig.execute(StepPlan(3, (), swaps_in=copies))
    rig.ledger.publish(back, chain, 5)
    assert rig.ledger.cache.match(chain, 6) == ()


@pytest.mark.parametrize("delay", [0, 1, 2])
@pytest.mark.parametrize("copy_delay", [0, 1, 2])
@pytest.mark.parametrize("slots", [0, 6])
def test_case_24_late_results_and_giving_way_meet_in_every_combination(
    delay: int, copy_delay: int, slots: int
) -> None:
    for seed in range(4):
        world = MemoryWorld(
            random.Random(seed),
            block_count=6,
            block_size=2,
            slots=slots,
            delay=delay,
            copy_delay=copy_delay,
        )
        for _ in range(100):
            world.act()
        world.finish()
