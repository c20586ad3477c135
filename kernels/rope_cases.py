"""Launches of what rotates queries and keys and writes the cache, at the shapes of real models."""

from __future__ import annotations

from functools import partial

import torch

from headway.kernels.attention_cases import LLAMA, QWEN, SMOLLM, TINY, Heads, pools
from headway.kernels.cases import Case, Outputs, Trial, noise
from headway.kernels.eight_bits import EightBits
from headway.kernels.launch import Chip
from headway.kernels.rope_kv_write import (
    HeadNorms,
    RotaryRows,
    rope_kv_write_counts,
    rope_kv_write_launch,
    rope_kv_write_reference,
)
from headway.kernels.varlen_attention import PagedCache


def _prepare_write(
    device: torch.device, chip: Chip, *, heads: Heads, tokens: int, quantized: EightBits | None
) -> Trial:
    width, all_heads = heads.head_dim, heads.query_heads + 2 * heads.kv_heads
    qkv = noise((tokens, all_heads, width), heads.dtype, device, seed=0)
    angles = noise((tokens, width // 2), torch.float32, device, seed=1)
    cos, sin = angles.cos(), angles.sin()
    every = torch.arange(tokens, device=device)
    rotary = RotaryRows(
        torch.cat((cos, cos), dim=-1).to(heads.dtype),
        torch.cat((-sin, sin), dim=-1).to(heads.dtype),
        positions=every,
    )
    blocks, slots = -(-tokens // heads.block_size), every.flip(0)
    query_norm, key_norm = (noise((width,), heads.dtype, device, seed) for seed in (2, 3))
    norms = HeadNorms(query_norm, key_norm, eps=1e-6)
    query = qkv.new_empty((tokens, heads.query_heads, width))
    pool = (blocks, heads.kv_heads, heads.block_size, width)

    def cache() -> PagedCache:
        return pools(pool, quantized, heads.dtype, chip, device)[0]

    ours = cache()

    def launch() -> Outputs:
        rope_kv_write_launch(
            qkv, rotary, ours, slots, query, norms=norms if heads.normed else None, chip=chip
        ).run()
        return query, *_contents(ours)

    def reference() -> Outputs:
        theirs = cache()
        expected = rope_kv_write_reference(qkv, rotary, theirs, slots, norms if heads.normed else None)
        return expected, *_contents(theirs)

    return Trial(launch, reference)


def _contents(cache: PagedCache) -> Outputs:
    """What the pools stand for: a value may be quantized to either neighbour of a tie."""
    if cache.key_scales is None or cache.value_scales is None:
        return cache.keys, cache.values
    return (
        cache.keys.float() * cache.key_scales.unsqueeze(-1),
        cache.values.float() * cache.value_scales.unsqueeze(-1),
    )


def _write(heads: Heads, tokens: int, *, quantized: EightBits | None = None) -> Case:
    # Counts do not depend on a chip: one byte per value is one byte.
    cache_type = torch.int8 if quantized else heads.dtype
    return Case(
        kernel="rotary and KV write",
        label=f"{heads.name}, {tokens} tokens{f', {quantized} cache' if quantized else ''}",
        counts=rope_kv_write_counts(
            tokens, heads.query_heads, heads.kv_heads, heads.head_dim, heads.dtype, cache_type
        ),
        prepare=partial(_prepare_write, heads=heads, tokens=tokens, quantized=quantized),
        tiny=heads.name == "tiny",
        # One step of an fp8 is a sixteenth of it.
        relative_tolerance=2**-4 if quantized else 2**-8,
    )


CASES = (
    _write(LLAMA, 32),
    _write(LLAMA, 2048),
    _write(LLAMA, 2048, quantized="fp8"),
    _write(LLAMA, 2048, quantized="int8"),
    _write(QWEN, 32),
    _write(QWEN, 2048),
    _write(SMOLLM, 32),
    _write(TINY, 11),
    _write(TINY, 11, quantized="fp8"),
    _write(TINY, 11, quantized="int8"),
)
