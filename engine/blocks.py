"""The block ledger: who holds which KV block, and a count that can be done again from scratch.

    available = free + cached - reserved        reserved = promised to open tables, not taken yet

A block is written only by the one table that holds it, and never once it is published: a fork shares full
blocks and copies the partial one. Blocks are released last first, and a block is published only after the one
before it in the same table, so a published block's ancestors outlive it in every state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from headway.engine.block_pool import BlockPool
from headway.engine.block_table import BlockTable, CopyHold
from headway.engine.errors import InvariantError
from headway.engine.prefix_cache import HashChain, PrefixCache
from headway.engine.values import BlockCopy


class BlockLedger(BlockPool):
    """Gives a pool's blocks to tables. Every change is whole or does not happen."""

    def __init__(self, block_count: int, block_size: int, cache: PrefixCache | None = None) -> None:
        super().__init__(block_count, block_size, cache)
        self.reserved_blocks = 0
        """Blocks promised to open tables and not taken yet."""
        self._tables: set[BlockTable] = set()
        self._holds: list[CopyHold] = []
        self._copied_step = 0

    @property
    def available_blocks(self) -> int:
        """Blocks that a table may reserve or take beyond its reservation, by eviction if need be."""
        return len(self._free) + self.cached_blocks - self.reserved_blocks

    def can_open(self, blocks: int, prefix: Sequence[int] = ()) -> bool:
        """Whether ``open_table`` with the same arguments has room now."""
        revived = sum(self.cache.is_evictable(block) for block in prefix)
        return max(0, blocks - len(prefix)) + revived <= self.available_blocks

    def reclaimable_blocks(self, tables: Iterable[BlockTable], kept: AbstractSet[int] = frozenset()) -> int:
        """Blocks (and reservations) that come back at once if all these tables close now.

        Shared blocks that others hold, and blocks that a step in flight or a swap still touches, do not; and
        of what does, ``kept`` is not counted.
        """
        chosen = list(tables)
        if len(chosen) == 1 and not kept:
            return self._reclaimable_alone(chosen[0])
        counted = Counter(block for table in chosen for block in table.blocks)
        passed = self._finished_step
        fenced = {block for table in chosen if table.last_step > passed for block in table.blocks}
        return sum(table.reserved_blocks for table in chosen) + sum(
            held == self._references[block] and self._fences[block] <= passed and block not in fenced
            for block, held in counted.items()
            if block not in kept
        )

    def _reclaimable_alone(self, table: BlockTable) -> int:
        references, fences, passed = self._references, self._fences, self._finished_step
        if table.last_step > passed:
            return table.reserved_blocks
        return table.reserved_blocks + sum(
            [references[block] == 1 and fences[block] <= passed for block in table.blocks]
        )

    def kept_blocks(self, table: BlockTable) -> int:
        """Published blocks at the beginning of the table that others hold, so that a hit finds them again."""
        kept = 0
        while kept < table.published_blocks and self._references[table.blocks[kept]] > 1:
            kept += 1
        return kept

    def is_fenced(self, table: BlockTable) -> bool:
        """Whether a planned step or swap that touches its blocks is not known to be finished."""
        return table.last_step > self._finished_step or table.swap_step > self._copied_step

    def is_arriving(self, table: BlockTable) -> bool:
        """Whether the swap that fills its blocks is under way: no step may compute on them yet."""
        return table.swap_step > self._copied_step

    # -- Tables ----------------------------------------------------------------------------------------------

    def open_table(self, blocks: int, prefix: tuple[int, ...] = ()) -> BlockTable:
        """Reserve so that one request may grow to ``blocks`` in all, the first of them shared (``prefix``).

        ``prefix``: a prefix hit or full blocks of another table. Raises InvariantError when ``can_open`` says
        no; nothing has changed then.
        """
        if not self.can_open(blocks, prefix):
            raise InvariantError(
                f"{blocks - len(prefix)} blocks reserved with only {self.available_blocks} available"
            )
        table = BlockTable(max(0, blocks - len(prefix)), prefix, self.cache.resets)
        self._share(prefix)
        self._tables.add(table)
        self.reserved_blocks += table.reserved_blocks
        return table

    def extend(self, table: BlockTable, tokens: int, step: int = 0) -> tuple[int, ...]:
        """The table after it covers ``tokens``; takes from its reservation first, then what is available.

        ``step``: the step that will touch the blocks. Raises InvariantError when that is not enough.
        """
        if tokens > len(table.blocks) * self.block_size:
            missing = self.blocks_for(tokens) - len(table.blocks)
            promised = min(missing, table.reserved_blocks)
            if table not in self._tables or missing - promised > self.available_blocks:
                raise InvariantError(
                    f"{missing} blocks taken with {table.reserved_blocks} left of the reservation "
                    f"and {self.available_blocks} available"
                )
            table.reserved_blocks -= promised
            self.reserved_blocks -= promised
            table.blocks += self._take(missing)
        if step > table.last_step:  # noqa: PLR1730 -- once per request and step: max() costs three times as much
            table.last_step = step
        return table.blocks

    def fork_table(
        self, parent: BlockTable, tokens: int, blocks: int, step: int
    ) -> tuple[BlockTable, BlockCopy | None]:
        """A table that shares the first ``tokens`` computed tokens of ``parent`` and may grow to ``blocks``.

        Full blocks are shared; the partial one, which both would write, is copied first, in ``step``. Room:
        ``can_open(blocks, parent.blocks[: tokens // block_size])`` with ``blocks`` ≥ ``blocks_for(tokens)``.
        """
        full = tokens // self.block_size
        table = self.open_table(max(blocks, self.blocks_for(tokens)), parent.blocks[:full])
        table.published_blocks = min(full, parent.published_blocks)
        table.resets = parent.resets
        if tokens == full * self.block_size:
            return table, None
        parent.last_step = max(parent.last_step, step)
        return table, BlockCopy(parent.blocks[full], self.extend(table, tokens, step)[full])

    def close_table(self, table: BlockTable) -> None:
        """Give back all blocks and the rest of the reservation; raises InvariantError the second time."""
        self._forget_table(table)
        self._release(table.blocks, table.last_step)
        table.blocks = ()

    def _forget_table(self, table: BlockTable) -> None:
        if table not in self._tables:
            raise InvariantError("a block table was released twice")
        self._tables.remove(table)
        self.reserved_blocks -= table.reserved_blocks
        table.reserved_blocks = 0

    def publish(self, table: BlockTable, chain: HashChain, computed_tokens: int) -> None:
        """Let others hit the full blocks among the first ``computed_tokens``, all of them final and computed.

        Stops at a block whose content another block already stands for: it stays private, and so does what
        follows it, so that whoever holds a published block holds its ancestors.
        """
        if table.resets == self.cache.resets:
            full = computed_tokens // self.block_size
            table.published_blocks = self.cache.publish(chain, table.blocks, table.published_blocks, full)

    # -- Swaps and fences ------------------------------------------------------------------------------------

    def hold_closed(self, table: BlockTable, step: int) -> None:
        """Close a table, but let the swap of ``step`` keep its references until it is complete."""
        self._forget_table(table)
        self._pin(table.blocks)
        self._holds.append(CopyHold(table.blocks, step, table.last_step))
        table.blocks = ()

    def hold_open(self, table: BlockTable, blocks: tuple[int, ...], step: int) -> None:
        """References for the swap of ``step`` that fills blocks of an open table."""
        table.swap_step = step
        self._share(blocks)
        self._pin(blocks)
        self._holds.append(CopyHold(blocks, step, step))

    def complete(self, step: int, copied_step: int | None = None) -> None:
        """Steps up to ``step`` and swaps up to ``copied_step`` (None: ``step``) touch nothing any more."""
        self._copied_step = max(self._copied_step, step if copied_step is None else copied_step)
        # What left its tables earlier lands first: a hold may release the ancestor of a block in limbo.
        self._pass(step)
        for hold in [hold for hold in self._holds if hold.step <= self._copied_step]:
            self._holds.remove(hold)
            self._unpin(hold.blocks)
            self._release(hold.blocks, hold.last_step)

    # -- The recount -----------------------------------------------------------------------------------------

    def check(self, open_tables: list[BlockTable]) -> None:
        """Recount everything from scratch; raises InvariantError on the first difference."""
        if set(open_tables) != self._tables or len(open_tables) != len(self._tables):
            raise InvariantError(f"{len(self._tables)} tables are open, {len(open_tables)} are owned")
        counted = Counter(block for table in open_tables for block in table.blocks)
        pinned = Counter(block for hold in self._holds for block in hold.blocks)
        if any(len(set(table.blocks)) != len(table.blocks) for table in open_tables):
            raise InvariantError("a table holds the same block twice")
        self._check_places(counted, pinned)
        self.cache.check()
        reserved = sum(table.reserved_blocks for table in open_tables)
        if reserved != self.reserved_blocks or self.available_blocks < 0:
            raise InvariantError(
                f"{reserved} blocks reserved, {self.reserved_blocks} booked, {len(self._free)} free"
            )
