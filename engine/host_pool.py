"""Swapped requests: their KV in host memory, and the copies between the two sides.

    running ──swap_out──► leaving ──complete──► parked ──swap_in──► incoming ──complete──► running
                             └───────── drop ──────┴── (cancelled, or recomputed instead)

One slot holds one block. Device blocks under a swap are held by the copy (``BlockLedger.hold_closed``,
``hold_open``); slots under a swap wait for the same step's completion before they are used again.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.engine.block_table import BlockTable
from headway.engine.blocks import BlockLedger
from headway.engine.errors import InvariantError
from headway.engine.values import BlockCopy


@dataclass(frozen=True, slots=True, eq=False)
class Parked:
    """What is left of a swapped request's table: ``tokens`` computed tokens, one slot per block."""

    slots: tuple[int, ...]
    tokens: int
    step: int
    """Its copy to the host is part of this step."""
    incarnations: tuple[tuple[int, int], ...]
    """Its published device blocks; those that still hold the same bytes are shared again, not copied."""
    resets: int
    """Of its table: which weights its KV is of."""


class HostPool:
    """``slot_count`` slots in host memory; 0: nothing is ever swapped."""

    def __init__(self, ledger: BlockLedger, slot_count: int) -> None:
        self._ledger = ledger
        self.slot_count = slot_count
        # A stack, lowest on top: slots taken together are mostly neighbours, so copies run long.
        self._free = list(range(slot_count - 1, -1, -1))
        self._parked: set[Parked] = set()
        self._leaving: list[tuple[int, tuple[int, ...]]] = []
        """(step, slots) that a swap still touches and nobody owns."""
        self._copied_step = 0

    @property
    def free_slots(self) -> int:
        """Slots that a swap may take now."""
        return len(self._free)

    @property
    def used_slots(self) -> int:
        """Slots that hold a swapped request or that a swap still touches."""
        return self.slot_count - len(self._free)

    def can_swap_out(self, tokens: int) -> bool:
        """Whether the host has room for a request with so many computed tokens."""
        return 0 < self._ledger.blocks_for(tokens) <= len(self._free)

    def swap_out(self, table: BlockTable, tokens: int, step: int) -> tuple[Parked, tuple[BlockCopy, ...]]:
        """Close the table of an unfenced request and copy its computed blocks to the host in ``step``."""
        count = self._ledger.blocks_for(tokens)
        if not self.can_swap_out(tokens) or self._ledger.is_fenced(table):
            raise InvariantError(f"{count} blocks swapped out with {len(self._free)} slots, or fenced")
        slots = tuple([self._free.pop() for _ in range(count)])
        copies = tuple(map(BlockCopy, table.blocks[:count], slots))
        parked = Parked(
            slots,
            tokens,
            step,
            self._ledger.incarnations(table.blocks[: table.published_blocks]),
            table.resets,
        )
        self._ledger.hold_closed(table, step)
        self._parked.add(parked)
        return parked, copies

    def is_settled(self, parked: Parked) -> bool:
        """Whether its copy to the host is complete, so that it may come back."""
        return parked.step <= self._copied_step

    def can_swap_in(self, parked: Parked, blocks: int) -> bool:
        """Whether it may come back now, with room to grow to ``blocks``."""
        survivors = self._ledger.survivors(parked.incarnations)
        blocks = max(blocks, self._ledger.blocks_for(parked.tokens))
        return self.is_settled(parked) and self._ledger.can_open(blocks, survivors)

    def swap_in(self, parked: Parked, blocks: int, step: int) -> tuple[BlockTable, tuple[BlockCopy, ...]]:
        """A table with the same bytes and room to grow to ``blocks``; usable once ``step`` has copied.

        Blocks of its prefix that still are what they were are shared again, the others copied from the host.
        """
        if parked not in self._parked or not self.can_swap_in(parked, blocks):
            raise InvariantError("a request is swapped in that is not parked, or without room")
        survivors = self._ledger.survivors(parked.incarnations)
        kept = len(survivors)
        table = self._ledger.open_table(max(blocks, self._ledger.blocks_for(parked.tokens)), survivors)
        fresh = self._ledger.extend(table, parked.tokens)[kept:]
        table.resets = parked.resets
        self._ledger.hold_open(table, fresh, step)
        self._parked.remove(parked)
        self._leaving.append((step, parked.slots))
        return table, tuple(map(BlockCopy, parked.slots[kept:], fresh))

    def drop(self, parked: Parked) -> None:
        """Give its slots back, once: it ended, or is recomputed instead."""
        if parked not in self._parked:
            raise InvariantError("a parked request was dropped twice")
        self._parked.remove(parked)
        self._leaving.append((parked.step, parked.slots))
        self.complete(self._copied_step)

    def complete(self, copied_step: int) -> None:
        """Swaps up to this step touch nothing any more."""
        self._copied_step = max(self._copied_step, copied_step)
        if not self._leaving:
            return
        still: list[tuple[int, tuple[int, ...]]] = []
        for step, slots in self._leaving:
            if step <= self._copied_step:
                self._free.extend(reversed(slots))
            else:
                still.append((step, slots))
        self._leaving = still

    def check(self, parked: list[Parked]) -> None:
        """Recount from scratch; raises InvariantError on the first difference."""
        if set(parked) != self._parked or len(parked) != len(self._parked):
            raise InvariantError(f"{len(self._parked)} requests are parked, {len(parked)} are owned")
        slots = [slot for each in parked for slot in each.slots]
        slots += [slot for _, leaving in self._leaving for slot in leaving]
        if sorted(slots + self._free) != list(range(self.slot_count)):
            raise InvariantError(
                f"{len(slots)} slots used and {len(self._free)} free are not {self.slot_count}, each once"
            )
