"""The ledger's books balance after any operation, and a failed operation changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway.engine.block_table import BlockTable
from headway.engine.blocks import BlockLedger
from headway.engine.errors import InvariantError
from headway.engine.prefix_cache import PrefixCache


class LedgerWalk(RuleBasedStateMachine):
    """Random tables on a small pool, beside a model that only counts."""

    @initialize(block_count=st.integers(3, 12), block_size=st.integers(1, 4))
    def make(self, block_count: int, block_size: int) -> None:
        self.ledger = BlockLedger(block_count, block_size)
        self.tables: list[BlockTable] = []
        self.promised: dict[BlockTable, int] = {}
        self.closed: list[BlockTable] = []

    @rule(blocks=st.integers(1, 14))
    def open(self, blocks: int) -> None:
        if blocks > self.ledger.block_count - sum(self.promised.values()):
            with pytest.raises(InvariantError):
                self.ledger.open_table(blocks)
            return
        table = self.ledger.open_table(blocks)
        self.tables.append(table)
        self.promised[table] = blocks

    @precondition(lambda self: self.tables)
    @rule(choice=st.data(), tokens=st.integers(0, 60))
    def extend(self, choice: st.DataObject, tokens: int) -> None:
        table = choice.draw(st.sampled_from(self.tables))
        before = table.blocks
        beyond = max(0, self.ledger.blocks_for(tokens) - max(self.promised[table], len(before)))
        others = sum(self.promised.values()) - self.promised[table]
        room = self.ledger.block_count - others - max(self.promised[table], len(before))
        if beyond > room:
            with pytest.raises(InvariantError):
                self.ledger.extend(table, tokens)
            assert table.blocks is before
            return
        after = self.ledger.extend(table, tokens)
        self.promised[table] = max(self.promised[table], len(after))
        assert after[: len(before)] == before
        assert len(after) == max(len(before), -(-tokens // self.ledger.block_size))
        assert len(after) > len(before) or after is before

    @precondition(lambda self: self.tables)
    @rule(choice=st.data())
    def close(self, choice: st.DataObject) -> None:
        table = choice.draw(st.sampled_from(self.tables))
        self.ledger.close_table(table)
        self.tables.remove(table)
        del self.promised[table]
        self.closed.append(table)

    @precondition(lambda self: self.closed)
    @rule(choice=st.data())
    def close_again(self, choice: st.DataObject) -> None:
        with pytest.raises(InvariantError, match="twice"):
            self.ledger.close_table(choice.draw(st.sampled_from(self.closed)))

    @invariant()
    def books_balance(self) -> None:
        ledger = self.ledger
        ledger.check(self.tables)
        held = [block for table in self.tables for block in table.blocks]
        assert len(held) == len(set(held)) == ledger.used_blocks
        assert ledger.free_blocks + ledger.used_blocks == ledger.block_count
        assert ledger.available_blocks == ledger.block_count - sum(self.promised.values()) >= 0


TestLedgerWalk = LedgerWalk.TestCase


def test_a_recount_finds_a_table_that_nobody_owns() -> None:
    ledger = BlockLedger(4, 2)
    ledger.open_table(1)
    with pytest.raises(InvariantError, match="1 tables are open, 0 are owned"):
        ledger.check([])


def test_a_recount_finds_a_block_in_two_tables() -> None:
    ledger = BlockLedger(4, 2)
    first, second = ledger.open_table(1), ledger.open_table(1)
    ledger.extend(first, 2)
    second.blocks = first.blocks
    with pytest.raises(InvariantError, match="reference counts differ"):
        ledger.check([first, second])


def test_a_recount_finds_a_reservation_that_does_not_add_up() -> None:
    ledger = BlockLedger(4, 2)
    table = ledger.open_table(2)
    table.reserved_blocks = 1
    with pytest.raises(InvariantError, match="1 blocks reserved, 2 booked"):
        ledger.check([table])


def test_case_18_a_block_that_left_its_table_waits_for_the_step_that_may_touch_it() -> None:
    ledger = BlockLedger(4, 2)
    table = ledger.open_table(0)
    ledger.extend(table, 4, step=1)
    ledger.close_table(table)
    assert (ledger.free_blocks, ledger.limbo_blocks) == (2, 2)
    ledger.complete(0)
    assert ledger.limbo_blocks == 2
    ledger.complete(1)
    assert (ledger.free_blocks, ledger.limbo_blocks) == (4, 0)


def test_a_shared_block_waits_for_the_latest_of_those_who_shared_it() -> None:
    ledger = BlockLedger(4, 2)
    parent = ledger.open_table(0)
    ledger.extend(parent, 4, step=5)
    child, _ = ledger.fork_table(parent, 4, 2, 1)
    ledger.extend(child, 4, step=1)
    ledger.close_table(parent)
    ledger.close_table(child)
    ledger.complete(1)
    assert ledger.limbo_blocks == 2, "step 5 still touches them"
    ledger.complete(5)
    assert ledger.free_blocks == 4


def test_a_fork_keeps_the_block_that_it_copies_until_it_is_copied() -> None:
    ledger = BlockLedger(6, 2)
    parent = ledger.open_table(0)
    ledger.extend(parent, 3)
    child, copy = ledger.fork_table(parent, 3, 2, 4)
    assert copy is not None
    assert (copy.source, copy.target) == (parent.blocks[1], child.blocks[1])
    assert child.blocks[0] == parent.blocks[0]
    source = copy.source
    ledger.close_table(parent)
    taker = ledger.open_table(0)
    ledger.extend(taker, 2 * (ledger.available_blocks))
    assert source not in taker.blocks
    ledger.complete(4)
    ledger.extend(taker, 2 * (len(taker.blocks) + 1))
    assert source in taker.blocks
    ledger.check([child, taker])


def test_case_21_a_recount_finds_a_block_that_is_nowhere() -> None:
    ledger = BlockLedger(4, 2, PrefixCache(2))
    table = ledger.open_table(4)
    ledger.extend(table, 8)
    table.blocks = table.blocks[:3]
    with pytest.raises(InvariantError, match="reference counts differ"):
        ledger.check([table])
