"""The block ledger: who holds which KV block, and a count that can be done again from scratch.

    total = free + cached + used + limbo + swapping        each block is in exactly one of these

    free      nobody needs it, nobody may hit it
    cached    in no table, but published: a prefix hit brings it back, eviction makes it free
    used      in at least one table (a hit or a fork puts it into several)
    limbo     left its last table while a step in flight may still touch it: it waits for that step's fence
    swapping  only a swap still reads or writes it; the copy holds a reference of its own

    available = free + cached - reserved        reserved = promised to open tables, not taken yet

A block is written only by the one table that holds it, and never once it is published: a fork shares full
blocks and copies the partial one. Blocks are released last first, and a block is published only after the one
before it in the same table, so a published block's ancestors outlive it in every state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from headway.engine.block_table import BlockTable, CopyHold
from headway.engine.errors import InvariantError
from headway.engine.prefix_cache import HashChain, PrefixCache
from headway.engine.values import BlockCopy


class BlockLedger:
    """A pool of ``block_count`` blocks of ``block_size`` tokens. Every change is whole or does not happen."""

    def __init__(self, block_count: int, block_size: int, cache: PrefixCache | None = None) -> None:
        self.block_count = block_count
        self.block_size = block_size
        self.cache = cache or PrefixCache(block_size, is_enabled=False)
        # A stack, lowest ids on top: the block freed last is reused first, while it is still warm in a cache.
        self._free = list(range(block_count - 1, -1, -1))
        self._references = [0] * block_count
        self._pins = [0] * block_count
        """Of the references, those of swaps."""
        self._fences = [0] * block_count
        self._generations = [0] * block_count
        """Raised whenever a block is taken: tells whether it still is what it was."""
        self._limbo: dict[int, None] = {}
        self._tables: set[BlockTable] = set()
        self._holds: list[CopyHold] = []
        self._reserved_blocks = 0
        self._swapping_blocks = 0
        self._finished_step = 0
        self._copied_step = 0

    # -- Counts ----------------------------------------------------------------------------------------------

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody needs and nobody may hit."""
        return len(self._free)

    @property
    def cached_blocks(self) -> int:
        """Published blocks in no table; eviction may take them."""
        return self.cache.evictable_blocks

    @property
    def limbo_blocks(self) -> int:
        """Blocks in no table that a step in flight may still touch."""
        return len(self._limbo)

    @property
    def swapping_blocks(self) -> int:
        """Blocks that only a swap still reads or writes."""
        return self._swapping_blocks

    @property
    def used_blocks(self) -> int:
        """Blocks in at least one table."""
        return (
            self.block_count - len(self._free) - self.cached_blocks - len(self._limbo) - self._swapping_blocks
        )

    @property
    def reserved_blocks(self) -> int:
        """Blocks promised to open tables and not taken yet."""
        return self._reserved_blocks

    @property
    def available_blocks(self) -> int:
        """Blocks that a table may reserve or take beyond its reservation, by eviction if need be."""
        return len(self._free) + self.cached_blocks - self._reserved_blocks

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-tokens // self.block_size)

    def can_open(self, blocks: int, prefix: Sequence[int] = ()) -> bool:
        """Whether ``open_table`` with the same arguments has room now."""
        revived = sum(self.cache.is_evictable(block) for block in prefix)
        return max(0, blocks - len(prefix)) + revived <= self.available_blocks

    def shortage(self, table: BlockTable, tokens: int) -> int:
        """Blocks that lack for ``extend`` to the same length; 0: it has room now."""
        missing = self.blocks_for(tokens) - len(table.blocks) - table.reserved_blocks
        return max(0, missing - max(0, self.available_blocks)) if missing > 0 else 0

    def reclaimable_blocks(self, tables: Iterable[BlockTable]) -> int:
        """Blocks (and reservations) that come back at once if all these tables close now.

        Shared blocks that others hold, and blocks that a step in flight or a swap still touches, do not.
        """
        chosen = list(tables)
        if len(chosen) == 1:
            return self._reclaimable_alone(chosen[0])
        counted = Counter(block for table in chosen for block in table.blocks)
        passed = self._finished_step
        fenced = {block for table in chosen if table.last_step > passed for block in table.blocks}
        return sum(table.reserved_blocks for table in chosen) + sum(
            held == self._references[block] and self._fences[block] <= passed and block not in fenced
            for block, held in counted.items()
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
        for block in prefix:
            self._share(block)
        self._tables.add(table)
        self._reserved_blocks += table.reserved_blocks
        return table

    def extend(self, table: BlockTable, tokens: int, step: int = 0) -> tuple[int, ...]:
        """The table after it covers ``tokens``; takes from its reservation first, then what is available.

        ``step``: the step that will touch the blocks. Raises InvariantError when ``shortage`` is not 0.
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
            self._reserved_blocks -= promised
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

    def publish(self, table: BlockTable, chain: HashChain, computed_tokens: int) -> None:
        """Let others hit the full blocks among the first ``computed_tokens``, all of them final and computed.

        Stops at a block whose content another block already stands for: it stays private, and so does what
        follows it, so that whoever holds a published block holds its ancestors.
        """
        if table.resets == self.cache.resets:
            full = computed_tokens // self.block_size
            table.published_blocks = self.cache.publish(chain, table.blocks, table.published_blocks, full)

    # -- Swaps and fences ------------------------------------------------------------------------------------

    def hold_closed(self, table: BlockTable, step: int) -> CopyHold:
        """Close a table, but let the swap of ``step`` keep its references until it is complete."""
        self._forget_table(table)
        hold = CopyHold(table.blocks, step, table.last_step)
        for block in table.blocks:
            self._pins[block] += 1
            self._swapping_blocks += self._pins[block] == self._references[block]
        table.blocks = ()
        self._holds.append(hold)
        return hold

    def hold_open(self, table: BlockTable, blocks: tuple[int, ...], step: int) -> CopyHold:
        """References for the swap of ``step`` that fills blocks of an open table."""
        table.swap_step = step
        for block in blocks:
            self._references[block] += 1
            self._pins[block] += 1
        hold = CopyHold(blocks, step, step)
        self._holds.append(hold)
        return hold

    def complete(self, step: int, copied_step: int | None = None) -> None:
        """Steps up to ``step`` and swaps up to ``copied_step`` (None: ``step``) touch nothing any more."""
        self._finished_step = max(self._finished_step, step)
        self._copied_step = max(self._copied_step, step if copied_step is None else copied_step)
        # What left its tables earlier lands first: a hold may release the ancestor of a block in limbo.
        if self._limbo:
            landed = [block for block in self._limbo if self._fences[block] <= self._finished_step]
            for block in landed:
                del self._limbo[block]
            self._free += self.cache.retire(landed)
        for hold in [hold for hold in self._holds if hold.step <= self._copied_step]:
            self._holds.remove(hold)
            self._close_hold(hold)

    def incarnations(self, table: BlockTable) -> tuple[tuple[int, int], ...]:
        """The published blocks of a table, each with its generation, to be found again by ``survivors``."""
        return tuple((block, self._generations[block]) for block in table.blocks[: table.published_blocks])

    def survivors(self, incarnations: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """Those of the first blocks that still hold the very same bytes."""
        alive: list[int] = []
        for block, generation in incarnations:
            if self._generations[block] != generation or not self.cache.is_published(block):
                break
            alive.append(block)
        return tuple(alive)

    def reset_cache(self, weights_version: str) -> None:
        """New weights: no block computed by the old ones is ever hit again."""
        for block in self.cache.reset(weights_version):
            self._free.append(block)

    # -- Parts -----------------------------------------------------------------------------------------------

    def _share(self, block: int) -> None:
        if self._references[block] == 0:
            if block in self._limbo:
                del self._limbo[block]
            else:
                self.cache.revive(block)
        self._swapping_blocks -= self._pins[block] == self._references[block] > 0
        self._references[block] += 1

    def _take(self, count: int) -> tuple[int, ...]:
        taken = [self._free.pop() for _ in range(min(count, len(self._free)))]
        if count > len(taken):
            taken += self.cache.evict(count - len(taken))
        for block in taken:
            self._references[block] = 1
            self._generations[block] += 1
        return tuple(taken)

    def _forget_table(self, table: BlockTable) -> None:
        if table not in self._tables:
            raise InvariantError("a block table was released twice")
        self._tables.remove(table)
        self._reserved_blocks -= table.reserved_blocks
        table.reserved_blocks = 0

    def _close_hold(self, hold: CopyHold) -> None:
        for block in hold.blocks:
            self._swapping_blocks -= self._pins[block] == self._references[block]
            self._pins[block] -= 1
        self._release(hold.blocks, hold.last_step)

    def _release(self, blocks: tuple[int, ...], fence: int) -> None:
        """One reference less to each, last block first: the tail of a chain has to go before its head."""
        landed: list[int] = []
        for block in reversed(blocks):
            self._references[block] -= 1
            self._fences[block] = max(self._fences[block], fence)
            if self._references[block]:
                self._swapping_blocks += self._pins[block] == self._references[block]
            elif self._fences[block] > self._finished_step:
                self._limbo[block] = None
            else:
                landed.append(block)
        self._free += self.cache.retire(landed)

    # -- The recount -----------------------------------------------------------------------------------------

    def check(self, open_tables: list[BlockTable]) -> None:
        """Recount everything from scratch; raises InvariantError on the first difference."""
        if set(open_tables) != self._tables or len(open_tables) != len(self._tables):
            raise InvariantError(f"{len(self._tables)} tables are open, {len(open_tables)} are owned")
        counted = Counter(block for table in open_tables for block in table.blocks)
        pinned = Counter(block for hold in self._holds for block in hold.blocks)
        everyone = range(self.block_count)
        if any(
            self._references[block] != counted[block] + pinned[block] or self._pins[block] != pinned[block]
            for block in everyone
        ):
            raise InvariantError("reference counts differ from the tables")
        if any(len(set(table.blocks)) != len(table.blocks) for table in open_tables):
            raise InvariantError("a table holds the same block twice")
        self._check_places(counted, pinned)
        self.cache.check()
        reserved = sum(table.reserved_blocks for table in open_tables)
        if reserved != self._reserved_blocks or self.available_blocks < 0:
            raise InvariantError(
                f"{reserved} blocks reserved, {self._reserved_blocks} booked, {len(self._free)} free"
            )

    def _check_places(self, counted: Counter[int], pinned: Counter[int]) -> None:
        places = {
            "free": list(self._free),
            "cached": list(self.cache.evictable()),
            "used": list(counted),
            "limbo": list(self._limbo),
            "swapping": list(pinned.keys() - counted.keys()),
        }
        if sorted(block for blocks in places.values() for block in blocks) != list(range(self.block_count)):
            sizes = ", ".join(f"{name} {len(blocks)}" for name, blocks in places.items())
            raise InvariantError(f"{sizes} are not {self.block_count} blocks, each in one place")
        if len(places["swapping"]) != self._swapping_blocks:
            raise InvariantError(f"{len(places['swapping'])} blocks swap, {self._swapping_blocks} are booked")
        if any(self.cache.is_published(block) for block in self._free):
            raise InvariantError("a free block is published")
        if any(self._fences[block] <= self._finished_step for block in self._limbo):
            raise InvariantError("a block waits for a fence that has been passed")
