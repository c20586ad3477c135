"""Where keys and values of eight bits lie, so that a block is one piece with its scales.

    one head of a block:   values [block_size, d], one byte each ┃ scales [block_size], float32

Whoever copies, swaps, shares or forks blocks moves whole blocks of bytes and need not know of scales.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headway.kernels.varlen_attention import PagedCache

SCALE_BYTES = 4
"""Of a token's scale, per head."""


def eight_bit_cache(cells: Tensor, number: torch.dtype) -> PagedCache:
    """Views of a layer's bytes, uint8 [2, blocks, kv_heads, block_size, d + 4]: keys, then values.

    ``number``: int8 or an fp8. ``block_size`` · d must be a multiple of 4.
    """
    _, blocks, heads, size, cell = cells.shape
    width, head = cell - SCALE_BYTES, size * cell
    shape, steps = (blocks, heads, size), (heads * head, head)

    def values(plane: Tensor) -> Tensor:
        return plane.as_strided((*shape, width), (*steps, width, 1)).view(number)

    def scales(plane: Tensor) -> Tensor:
        words = plane.view(-1).view(torch.float32)
        first = words.storage_offset() + size * width // SCALE_BYTES
        return words.as_strided(shape, (*(step // SCALE_BYTES for step in steps), 1), first)

    keys, all_values = cells[0], cells[1]
    return PagedCache(values(keys), values(all_values), scales(keys), scales(all_values))
