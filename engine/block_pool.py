"""Where each KV block is, and when it may be used again.

total = free + cached + used + limbo + swapping        each block is in exactly one of these

free      nobody needs it, nobody may hit it
cached    in no table, but published: a prefix hit brings it back, eviction makes it free
used      in at least one table (a hit or a fork puts it into several)
limbo     left its last table while a step in flight may still touch it: it waits for that step's fence
swapping  only a swap still reads or writes it; the copy holds a reference of its own
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headway.engine.errors import InvariantError
from headway.engine.prefix_cache import PrefixCache


class BlockPool:
    """``block_count`` blocks of ``block_size`` tokens, with their references and fences."""

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
        self.swapping_blocks = 0
        """Blocks that only a swap still reads or writes."""
        self._finished_step = 0

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
    def used_blocks(self) -> int:
        """Blocks in at least one table."""
        elsewhere = len(self._free) + self.cached_blocks + len(self._limbo) + self.swapping_blocks
        return self.block_count - elsewhere

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-tokens // self.block_size)

    def incarnations(self, blocks: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Blocks, each with its generation, to be found again by ``survivors``."""
        return tuple([(block, self._generations[block]) for block in blocks])

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
        self._free += self.cache.reset(weights_version)

    # -- For the ledger, which gives them out ----------------------------------------------------------------

    def _share(self, blocks: Sequence[int]) -> None:
        """One reference more to each, wherever it was."""
        for block in blocks:
            if self._references[block] == 0:
                if block in self._limbo:
                    del self._limbo[block]
                else:
                    self.cache.revive(block)
            self.swapping_blocks -= self._pins[block] == self._references[block] > 0
            self._references[block] += 1

    def _take(self, count: int) -> tuple[int, ...]:
        """Blocks that were free, or cached by the tenants most above their shares; one reference each."""
        taken = [self._free.pop() for _ in range(min(count, len(self._free)))]
        if count > len(taken):
            taken += self.cache.evict(count - len(taken))
        for block in taken:
            self._references[block] = 1
            self._generations[block] += 1
        return tuple(taken)

    def _release(self, blocks: tuple[int, ...], fence: int) -> None:
        """One reference less to each, last block first: the tail of a chain has to go before its head."""
        landed: list[int] = []
        for block in reversed(blocks):
            self._references[block] -= 1
            self._fences[block] = max(self._fences[block], fence)
            if self._references[block]:
                self.swapping_blocks += self._pins[block] == self._references[block]
            elif self._fences[block] > self._finished_step:
                self._limbo[block] = None
            else:
                landed.append(block)
        self._free += self.cache.retire(landed)

    def _pin(self, blocks: Sequence[int]) -> None:
        """References that are there already become those of a swap."""
        for block in blocks:
            self._pins[block] += 1
            self.swapping_blocks += self._pins[block] == self._references[block]

    def _unpin(self, blocks: Sequence[int]) -> None:
        """The swap is complete; its references are still there."""
        for block in blocks:
            self.swapping_blocks -= self._pins[block] == self._references[block]
            self._pins[block] -= 1

    def _pass(self, step: int) -> None:
        """Steps up to ``step`` touch nothing any more."""
        self._finished_step = max(self._finished_step, step)
        if self._limbo:
            landed = [block for block in self._limbo if self._fences[block] <= self._finished_step]
            for block in landed:
                del self._limbo[block]
            self._free += self.cache.retire(landed)

    def _check_places(self, counted: Counter[int], pinned: Counter[int]) -> None:
        """Recount each block's references and place; raises InvariantError on the first difference."""
        if any(
            self._references[block] != counted[block] + pinned[block] or self._pins[block] != pinned[block]
            for block in range(self.block_count)
        ):
            raise InvariantError("reference counts differ from the tables")
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
        if len(places["swapping"]) != self.swapping_blocks:
            raise InvariantError(f"{len(places['swapping'])} blocks swap, {self.swapping_blocks} are booked")
        if any(self.cache.is_published(block) for block in self._free):
            raise InvariantError("a free block is published")
        if any(self._fences[block] <= self._finished_step for block in self._limbo):
            raise InvariantError("a block waits for a fence that has been passed")
