"""The block ledger: who holds which KV block, and a count that can be done again from scratch.

    total = free + used            used = blocks in tables, each with its reference count
    free  = available + reserved   reserved = promised to running requests, not taken yet

A request reserves its longest length when it starts and takes blocks one by one as it grows, so a started
request always finds its next block. Shared blocks (prefix cache), blocks behind a step fence and swapped ones
join this equation with the next version; reference counts are kept for them already.
"""

from __future__ import annotations

from collections import Counter

from headway.engine.errors import InvariantError


class BlockTable:
    """The blocks of one running request, in the order of its tokens.

    ``blocks`` is replaced only when it grows, so ``is`` tells a change.
    """

    __slots__ = ("blocks", "reserved_blocks")

    def __init__(self, reserved_blocks: int) -> None:
        self.blocks: tuple[int, ...] = ()
        self.reserved_blocks = reserved_blocks


class BlockLedger:
    """A pool of ``block_count`` blocks of ``block_size`` tokens. Every change is whole or does not happen."""

    def __init__(self, block_count: int, block_size: int) -> None:
        self.block_count = block_count
        self.block_size = block_size
        # A stack, lowest ids on top: the block freed last is reused first, while it is still warm in a cache.
        self._free = list(range(block_count - 1, -1, -1))
        self._references = [0] * block_count
        self._tables: set[BlockTable] = set()
        self._reserved_blocks = 0

    @property
    def free_blocks(self) -> int:
        """Blocks in no table."""
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        """Blocks in at least one table."""
        return self.block_count - len(self._free)

    @property
    def reserved_blocks(self) -> int:
        """Free blocks promised to open tables."""
        return self._reserved_blocks

    @property
    def available_blocks(self) -> int:
        """Free blocks that a new table may reserve."""
        return len(self._free) - self._reserved_blocks

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-tokens // self.block_size)

    def open_table(self, blocks: int) -> BlockTable:
        """Reserve ``blocks`` for one request; raises InvariantError when they are not available."""
        if blocks > self.available_blocks:
            raise InvariantError(f"{blocks} blocks reserved with only {self.available_blocks} available")
        table = BlockTable(blocks)
        self._tables.add(table)
        self._reserved_blocks += blocks
        return table

    def extend(self, table: BlockTable, tokens: int) -> tuple[int, ...]:
        """The table after it covers ``tokens``; takes what is missing from its reservation."""
        missing = self.blocks_for(tokens) - len(table.blocks)
        if missing <= 0:
            return table.blocks
        if table not in self._tables or missing > table.reserved_blocks:
            raise InvariantError(
                f"{missing} blocks taken with {table.reserved_blocks} left of the reservation"
            )
        taken = [self._free.pop() for _ in range(missing)]
        for block in taken:
            self._references[block] += 1
        table.reserved_blocks -= missing
        self._reserved_blocks -= missing
        table.blocks = (*table.blocks, *taken)
        return table.blocks

    def close_table(self, table: BlockTable) -> None:
        """Give back all blocks and the rest of the reservation; raises InvariantError the second time."""
        if table not in self._tables:
            raise InvariantError("a block table was released twice")
        self._tables.remove(table)
        self._reserved_blocks -= table.reserved_blocks
        table.reserved_blocks = 0
        # Last block first: with shared prefixes the tail of a chain has to go before its head.
        for block in reversed(table.blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)
        table.blocks = ()

    def check(self, open_tables: list[BlockTable]) -> None:
        """Recount everything from scratch; raises InvariantError on the first difference."""
        if set(open_tables) != self._tables or len(open_tables) != len(self._tables):
            raise InvariantError(f"{len(self._tables)} tables are open, {len(open_tables)} are owned")
        counted = Counter(block for table in open_tables for block in table.blocks)
        if any(self._references[block] != counted[block] for block in range(self.block_count)):
            raise InvariantError("reference counts differ from the tables")
        free = set(self._free)
        if len(free) != len(self._free):
            raise InvariantError("a block is in the free list twice")
        if free & counted.keys() or len(free) + len(counted) != self.block_count:
            raise InvariantError(f"free {len(free)} + used {len(counted)} is not {self.block_count} blocks")
        if any(len(set(table.blocks)) != len(table.blocks) for table in open_tables):
            raise InvariantError("a table holds the same block twice")
        reserved = sum(table.reserved_blocks for table in open_tables)
        if reserved != self._reserved_blocks or reserved > len(free):
            raise InvariantError(
                f"{reserved} blocks reserved, {self._reserved_blocks} booked, {len(free)} free"
            )
