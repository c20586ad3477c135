"""Launches of attention at the shapes of real models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from headway.kernels.attention_plan import AttentionShape, PagedSequence
from headway.kernels.attention_tiles import attention_variants
from headway.kernels.cases import Case, Outputs, Prepare, Trial, noise, one_tile
from headway.kernels.eight_bit_cache import SCALE_BYTES, eight_bit_cache
from headway.kernels.eight_bits import EightBits, eight_bit_type
from headway.kernels.launch import DEFAULT_TILE, Chip
from headway.kernels.paged_attention import paged_attention_reference
from headway.kernels.rope_kv_write import quantize_rows_reference
from headway.kernels.varlen_attention import PagedCache, varlen_attention_launches
from headway.kernels.varlen_batch import (
    MIXED_TOKENS,
    attention_tile,
    plan_varlen,
    varlen_attention_counts,
)

Lengths: TypeAlias = tuple[tuple[int, int], ...]
"""(new, context) tokens of each sequence."""


@dataclass(frozen=True, slots=True)
class Heads:
    """A model's attention."""

    name: str
    query_heads: int
    kv_heads: int
    head_dim: int
    sliding_window: int | None = None
    soft_cap: float | None = None
    normed: bool = False
    dtype: torch.dtype = torch.bfloat16
    block_size: int = 16

    def shape(self, device: torch.device) -> AttentionShape:
        """For a plan."""
        return AttentionShape(
            self.query_heads,
            self.kv_heads,
            self.head_dim,
            self.block_size,
            self.sliding_window,
            self.dtype,
            device,
        )


LLAMA = Heads("Llama 3 8B", 32, 8, 128)
SMOLLM = Heads("SmolLM2 135M", 9, 3, 64)
GEMMA = Heads("Gemma 2 9B", 16, 8, 256, sliding_window=4096, soft_cap=50.0)
QWEN = Heads("Qwen3 8B", 32, 8, 128, normed=True)
TINY = Heads("tiny", 6, 2, 24, sliding_window=19, soft_cap=5.0, normed=True, block_size=4)


def pools(
    shape: tuple[int, ...], kind: EightBits | None, dtype: torch.dtype, chip: Chip, device: torch.device
) -> tuple[PagedCache, torch.dtype]:
    """(a layer's pools as the engine lays them out, their number); fp8 is int8 on a chip that has none."""
    if kind is None:
        keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        return PagedCache(keys, values), dtype
    number = eight_bit_type(kind, chip) or torch.int8
    blocks, heads, size, width = shape
    cells = torch.zeros((2, blocks, heads, size, width + SCALE_BYTES), dtype=torch.uint8, device=device)
    return eight_bit_cache(cells, number), number


def _sequences(heads: Heads, lengths: Lengths) -> list[PagedSequence]:
    """Every sequence's blocks apart from each other in the pool."""
    sequences: list[PagedSequence] = []
    start = 0
    for index, (new, context) in enumerate(lengths):
        blocks = -(-context // heads.block_size)
        table = index + len(lengths) * np.arange(blocks, dtype=np.int64)
        sequences.append(PagedSequence(start, new, context, table))
        start += new
    return sequences


def _fill(cache: PagedCache, number: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Noise for the pools; what keys, and then values, were made of: numbers and their scales."""
    filled: list[tuple[Tensor, Tensor]] = []
    halves = (cache.keys, cache.key_scales), (cache.values, cache.value_scales)
    for seed, (pool, pool_scales) in enumerate(halves, 1):
        exact = noise(tuple(pool.shape), torch.float32, pool.device, seed)
        cells, scales = quantize_rows_reference(exact, number)
        pool.copy_(cells)
        if pool_scales is not None:
            pool_scales.copy_(scales)
        filled.append((cells, scales))
    return filled


def prepare_attention(
    device: torch.device,
    chip: Chip,
    *,
    heads: Heads,
    lengths: Lengths,
    quantized: EightBits | None,
    deterministic: bool = False,
    tile: str = DEFAULT_TILE,
) -> Trial:
    """Attention over these lengths by one of its tiles."""
    sequences = _sequences(heads, lengths)
    tokens = sum(new for new, _ in lengths)
    blocks = 1 + max(int(sequence.table.max()) for sequence in sequences)
    query = noise((tokens, heads.query_heads, heads.head_dim), heads.dtype, device, seed=0)
    pool = (blocks, heads.kv_heads, heads.block_size, heads.head_dim)
    cache, number = pools(pool, quantized, heads.dtype, chip, device)
    filled = _fill(cache, number)
    plan = plan_varlen(
        sequences,
        replace(
            heads.shape(device), has_eight_bits=quantized is not None, decode_tile=tile, prefill_tile=tile
        ),
        chip,
        deterministic=deterministic,
    )
    out = torch.empty_like(query)
    scale = heads.head_dim**-0.5
    launches = varlen_attention_launches(
        query,
        cache,
        plan,
        out,
        scale=scale,
        sliding_window=heads.sliding_window,
        soft_cap=heads.soft_cap,
    )

    def launch() -> Outputs:
        for each in launches:
            each.run()
        return (out,)

    def reference() -> Outputs:
        keys, values = (cells.float() * scales.unsqueeze(-1) for cells, scales in filled)
        return (
            paged_attention_reference(
                query,
                keys,
                values,
                sequences,
                scale=scale,
                sliding_window=heads.sliding_window,
                soft_cap=heads.soft_cap,
            ),
        )

    return Trial(launch, reference)


def attention_variants_of(
    heads: Heads, lengths: Lengths, quantized: EightBits | None, chip: Chip
) -> dict[str, Prepare]:
    """By name, today's first: attention over these lengths by each of its tiles."""
    longest = max(new for new, _ in lengths)
    if 1 < longest < MIXED_TOKENS:
        return {}
    shape = replace(heads.shape(torch.device("meta")), has_eight_bits=quantized is not None)
    tile = attention_tile(shape, longest, chip)
    names = attention_variants(tile, shape, chip, is_decode=longest == 1)
    launch = partial(prepare_attention, heads=heads, lengths=lengths, quantized=quantized)
    return {name: partial(launch, tile=name) for name in names}


def _attention(
    heads: Heads,
    what: str,
    lengths: Lengths,
    *,
    quantized: EightBits | None = None,
    deterministic: bool = False,
) -> Case:
    # Counts do not depend on a chip: one byte per value is one byte.
    cache_type = torch.int8 if quantized else heads.dtype
    return Case(
        kernel="paged attention",
        label=f"{heads.name}, {what}",
        counts=varlen_attention_counts(lengths, heads.shape(torch.device("meta")), cache_type),
        prepare=partial(
            prepare_attention,
            heads=heads,
            lengths=lengths,
            quantized=quantized,
            deterministic=deterministic,
        ),
        unit="float32" if heads.dtype == torch.float32 else "bfloat16",
        tiny=heads.name == "tiny",
        # Weights are rounded to the model's type before they multiply the values.
        relative_tolerance=1e-4 if heads.dtype == torch.float32 else 2**-6,
        # In which order ``deterministic`` adds may not depend on a measurement.
        tiles=one_tile if deterministic else partial(attention_variants_of, heads, lengths, quantized),
    )


_MIXED: Lengths = (*((1, 2048),) * 31, (512, 4096))

CASES = (
    _attention(LLAMA, "32 decodes at 2048", ((1, 2048),) * 32),
    _attention(LLAMA, "1 decode at 32768", ((1, 32_768),)),
    _attention(LLAMA, "prefill of 2048", ((2048, 2048),)),
    _attention(LLAMA, "31 decodes and a chunk of 512", _MIXED),
    _attention(LLAMA, "31 decodes and a chunk of 512, deterministic", _MIXED, deterministic=True),
    _attention(LLAMA, "64 decodes at 2048, fp8 cache", ((1, 2048),) * 64, quantized="fp8"),
    _attention(LLAMA, "31 decodes and a chunk of 512, fp8 cache", _MIXED, quantized="fp8"),
    _attention(LLAMA, "64 decodes at 2048, int8 cache", ((1, 2048),) * 64, quantized="int8"),
    _attention(
        LLAMA,
        "31 decodes and a chunk of 512, int8 cache, deterministic",
        _MIXED,
        quantized="int8",
        deterministic=True,
    ),
    _attention(SMOLLM, "32 decodes at 512", ((1, 512),) * 32),
    _attention(SMOLLM, "31 decodes and a chunk of 512", _MIXED),
    _attention(replace(SMOLLM, dtype=torch.float32), "31 decodes and a chunk of 512, float32", _MIXED),
    _attention(GEMMA, "32 decodes at 8192", ((1, 8192),) * 32),
    _attention(GEMMA, "31 decodes and a chunk of 512", _MIXED),
    _attention(TINY, "decodes", ((1, 30), (1, 1), (1, 17))),
    _attention(TINY, "decodes and a chunk", ((1, 30), (1, 1), (17, 29))),
    _attention(TINY, "decodes, fp8 cache", ((1, 30), (2, 17)), quantized="fp8"),
    _attention(TINY, "decodes, int8 cache", ((1, 30), (2, 17)), quantized="int8", deterministic=True),
)
