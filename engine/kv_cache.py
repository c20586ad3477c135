"""The paged key-value cache: one pool of keys and one of values per layer, sized from a byte budget."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headway.engine.errors import ModelError
from headway.engine.model_config import ModelConfig
from headway.kernels.host_arrays import to_device


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
        self.block_shape = (config.layer_count, 2, config.kv_head_count, block_size, config.head_dim)
        """One block of all layers, as it lies in host memory."""
        shape = (config.layer_count, 2, block_count, config.kv_head_count, block_size, config.head_dim)
        self.pools = zeros(shape, dtype, device)
        """All of it: ``[layers, 2, blocks, kv_heads, block_size, head_dim]``."""
        self.keys: tuple[Tensor, ...] = tuple(self.pools[layer, 0] for layer in layers)
        self.values: tuple[Tensor, ...] = tuple(self.pools[layer, 1] for layer in layers)

    def gather(self, blocks: Sequence[int]) -> Tensor:
        """A copy of whole blocks: ``[len(blocks), *block_shape]``."""
        chosen = torch.tensor(list(blocks), device=self.pools.device)
        return self.pools.index_select(2, chosen).permute(2, 0, 1, 3, 4, 5).contiguous()

    def scatter(self, blocks: Tensor, content: Tensor) -> None:
        """Write ``content`` [n, *block_shape] to ``blocks`` [n]."""
        self.pools.index_copy_(2, blocks, content.permute(1, 2, 0, 3, 4, 5))

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks; no block is both source and target."""
        self.scatter(torch.tensor(list(targets), device=self.pools.device), self.gather(sources))


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    per_token = 2 * config.layer_count * config.kv_head_count * config.head_dim
    return per_token * block_size * dtype.itemsize


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
    # calloc'ed pages are zero and become resident only when a block is first written; torch.zeros would
    # touch them all.
    pages = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return to_device(pages, device).view(dtype).view(shape)
