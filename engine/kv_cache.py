"""The paged key-value cache: one pool of keys and one of values per layer, sized from a byte budget."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headway.engine.errors import ModelError
from headway.engine.model_config import ModelConfig
from headway.kernels.block_copy import copy_blocks, gather_blocks, scatter_blocks
from headway.kernels.eight_bit_cache import SCALE_BYTES, eight_bit_cache
from headway.kernels.host_arrays import to_device
from headway.kernels.varlen_attention import PagedCache

INT8 = torch.uint8
"""The dtype of pools that hold keys and values in 8 bits, each head with a float32 scale behind it."""


class KVCache:
    """Pools of ``[blocks, kv_heads, block_size, head_dim]`` (why heads come first: ``kernels.kv_write``)."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        block_count: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_count = block_count
        self.block_size = block_size
        layers = range(config.layer_count)
        width = _cell_width(config, dtype)
        self.block_shape = (config.layer_count, 2, config.kv_head_count, block_size, width)
        """One block of all layers, as it lies in host memory."""
        shape = (config.layer_count, 2, block_count, config.kv_head_count, block_size, width)
        self.pools = zeros(shape, dtype, device)
        """All of it: ``[layers, 2, blocks, kv_heads, block_size, head_dim]``; of ``INT8`` bytes, the last
        with the scale's (``kernels/cpu/attention.h`` and ``kernels.eight_bit_cache`` say where they lie)."""
        self.keys: tuple[Tensor, ...] = tuple(self.pools[layer, 0] for layer in layers)
        self.values: tuple[Tensor, ...] = tuple(self.pools[layer, 1] for layer in layers)

    def paged(self, number: torch.dtype | None = None) -> tuple[PagedCache, ...]:
        """Each layer's pools as the GPU's kernels read them; ``number``: what is in those of eight bits."""
        if number is not None:
            return tuple(eight_bit_cache(layer, number) for layer in self.pools)
        return tuple(PagedCache(*pair) for pair in zip(self.keys, self.values, strict=True))

    def gather(self, blocks: Sequence[int]) -> Tensor:
        """A copy of whole blocks: ``[len(blocks), *block_shape]``."""
        return gather_blocks(self.pools, self._indices(blocks))

    def scatter(self, blocks: Tensor, content: Tensor) -> None:
        """Write ``content`` [n, *block_shape] to ``blocks`` [n]."""
        scatter_blocks(self.pools, blocks, content)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks; no block is both source and target."""
        copy_blocks(self.pools, self._indices(sources), self._indices(targets))

    def _indices(self, blocks: Sequence[int]) -> Tensor:
        return to_device(np.array(blocks, dtype=np.int64), self.pools.device)


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    per_token = 2 * config.layer_count * config.kv_head_count * _cell_width(config, dtype)
    return per_token * block_size * dtype.itemsize


def _cell_width(config: ModelConfig, dtype: torch.dtype) -> int:
    return config.head_dim + (SCALE_BYTES if dtype == INT8 else 0)


def block_count_within(
    config: ModelConfig, *, kv_cache_bytes: int, block_size: int, dtype: torch.dtype
) -> int:
    """Blocks that fit the budget; ModelError when not even two do: one answer needs room to grow."""
    size = block_bytes(config, block_size, dtype)
    count = kv_cache_bytes // size
    if count < 2:
        raise ModelError(
            f"a KV cache of {kv_cache_bytes:,} bytes holds {count} blocks of {block_size} tokens "
            f"({size:,} bytes each); give it at least {2 * size:,} bytes"
        )
    return count


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that take memory only as they are written, where the device allows it."""
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    # Pages of its own from the system: an allocator may hand out what it has kept of memory that was in use,
    # and clears, so touches, all of it. (torch.zeros touches all in any case.)
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux
        with contextlib.suppress(OSError):  # a system built without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return to_device(np.frombuffer(pages, dtype=np.uint8), device).view(dtype).view(shape)
