"""Scatter new keys and values into the paged pools.

    pool[block[t], h, offset[t], :] = new[t, h, :]     pool: [blocks, kv_heads, block_size, d], new: [tokens,
    kv_heads, d]

Head before offset: one (block, head) pair is then a contiguous [block_size, d] tile, so attention gathers
whole tiles straight into [kv_heads, context, d], the layout that batched matrix products want (measured: 2 ×
the speed of tokens first on a CPU).

A pool row is one (block, head, offset); ``pool_rows`` are computed once per step and serve every layer:

    row(t, h) = (block[t] · kv_heads + h) · block_size + offset[t]
"""

from __future__ import annotations

from torch import Tensor


def kv_write_reference(pool: Tensor, new: Tensor, blocks: Tensor, offsets: Tensor) -> None:
    """The formula, one token at a time."""
    for token in range(new.shape[0]):
        pool[int(blocks[token]), :, int(offsets[token]), :] = new[token]


def kv_write(pool: Tensor, new: Tensor, pool_rows: Tensor) -> None:
    """Write ``new`` in place at ``pool_rows`` [tokens · kv_heads], int64, ordered by token, then head."""
    width = pool.shape[-1]
    pool.view(-1, width).index_copy_(0, pool_rows, new.reshape(-1, width))
