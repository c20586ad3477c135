"""The pages of a pool in main memory, provided by the system before a step writes to them.

Zeros take no memory until they are first written (``kv_cache.zeros``), and whoever writes waits until the
system has found and cleared a page: a step then takes 0.2 ms longer for each 2 MiB, and up to 4 ms where a
virtual machine's host has to find the memory first.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from typing import Final

from torch import Tensor

POPULATE_WRITE: Final = 23
"""MADV_POPULATE_WRITE, Linux 5.14 and later: as if each page had been written, but contents stay."""
PIECE_BYTES: Final = 2 << 20
"""Asked for at a time: one huge page. Whoever needs the map of the process's memory waits no longer."""
_LIBRARY: Final = ctypes.CDLL(None, use_errno=True)
_LIBRARY.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class PoolPages:
    """Of one pool [layers, 2, blocks, …] on a CPU. Steps may run meanwhile; one thread asks."""

    def __init__(self, pools: Tensor) -> None:
        self._pools = pools  # stays alive as long
        self.block_count = pools.shape[2]
        self.block_bytes = pools.nbytes // self.block_count
        """Over all layers, keys and values."""
        self.provided_blocks = 0
        """Of the lowest numbers, which the ledger gives out first."""

    def provide(self) -> bool:
        """The next blocks, ``PIECE_BYTES`` of each layer's keys and of its values; False: not on this
        system, or they are all there."""
        if self.provided_blocks == self.block_count:
            return False
        for start, length in self._next_pieces():
            if _LIBRARY.madvise(start, length, POPULATE_WRITE):
                return False
        self.provided_blocks = min(self.block_count, self.provided_blocks + self._blocks_of_piece)
        return True

    @property
    def _blocks_of_piece(self) -> int:
        return max(1, PIECE_BYTES // (self.block_bytes // self._regions))

    @property
    def _regions(self) -> int:
        return self._pools.shape[0] * self._pools.shape[1]

    def _next_pieces(self) -> Iterator[tuple[int, int]]:
        """(address, bytes), in whole pages: what else lies in the outermost ones is only made resident."""
        region_bytes = self._pools.nbytes // self._regions
        each = region_bytes // self.block_count
        first = self.provided_blocks
        last = min(self.block_count, first + self._blocks_of_piece)
        for region in range(self._regions):
            origin = self._pools.data_ptr() + region * region_bytes
            start = (origin + first * each) // mmap.PAGESIZE * mmap.PAGESIZE
            yield start, -(-(origin + last * each - start) // mmap.PAGESIZE) * mmap.PAGESIZE
