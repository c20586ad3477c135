"""From the fused projection to what attention reads, in one pass: q/k norm, rotary embedding, KV write.

    q, k, v  = qkv[t]                                     [query_heads + 2 · kv_heads, d]
    q, k     ← rms_norm(q) · w_q, rms_norm(k) · w_k       per head, optional (Qwen 3, arXiv 2505.09388)
    q, k     ← rotary(q), rotary(k)                       by the row of the tables at positions[t]
    query[t] = q ;  key_pool[block, h, offset] = k ;  value_pool[block, h, offset] = v
    slots[t] = block · block_size + offset

In float32, rounded once where it is written. A quantized cache has one scale per token and head:

    scale = max_i |k_i| / m ;  pool = round(k / scale)    m = 127 (int8), the largest number of an fp8

so that a token's keys are the same whoever shares its block (a scale per block would change with its
neighbours). A slot of -1 is padding: nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.kernels.eight_bits import LARGEST
from headway.kernels.launch import Chip, Counts, Launch, chip_of, next_power_of_two
from headway.kernels.rms_norm import rms_norm_reference
from headway.kernels.rotary import rotary_reference
from headway.kernels.triton_language import Operand, constexpr, jit, tl
from headway.kernels.varlen_attention import PagedCache


@dataclass(frozen=True, slots=True)
class RotaryRows:
    """Tables [positions, d] as ``rotary`` has them, and each token's row."""

    cos: Tensor
    signed_sin: Tensor
    positions: Tensor
    """[tokens], int32 or int64."""


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """q/k norm: weights [d]."""

    query: Tensor
    key: Tensor
    eps: float


def rope_kv_write_reference(
    qkv: Tensor, rotary: RotaryRows, cache: PagedCache, slots: Tensor, norms: HeadNorms | None = None
) -> Tensor:
    """The formula in float32; returns query [tokens, query_heads, d]. qkv: [tokens, heads, d]."""
    kv_heads, block_size = cache.keys.shape[1:3]
    wide = qkv.float()
    query, key, value = wide[:, : -2 * kv_heads], wide[:, -2 * kv_heads : -kv_heads], wide[:, -kv_heads:]
    if norms is not None:
        query = rms_norm_reference(query, norms.query, norms.eps)
        key = rms_norm_reference(key, norms.key, norms.eps)
    cos, signed_sin = (table[rotary.positions].unsqueeze(1) for table in (rotary.cos, rotary.signed_sin))
    written = slots >= 0
    blocks, offsets = slots[written] // block_size, slots[written] % block_size
    for pool, scales, new in (
        (cache.keys, cache.key_scales, rotary_reference(key, cos, signed_sin)),
        (cache.values, cache.value_scales, value),
    ):
        rows, row_scales = quantize_rows_reference(new[written], pool.dtype)
        pool[blocks, :, offsets] = rows
        if scales is not None:
            scales[blocks, :, offsets] = row_scales
    return rotary_reference(query, cos, signed_sin).to(qkv.dtype)


def quantize_rows_reference(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(rows in the pool's dtype, scales [...]); ones where the dtype is no quantized one."""
    if dtype not in LARGEST:
        return rows.to(dtype), torch.ones(rows.shape[:-1], device=rows.device)
    scales = (rows.abs().amax(dim=-1) / LARGEST[dtype]).clamp(min=SMALLEST_SCALE)
    scaled = rows / scales.unsqueeze(-1)
    return (torch.floor(scaled + 0.5) if dtype == torch.int8 else scaled).to(dtype), scales


SMALLEST_SCALE = 2.0**-100
"""Of a row of zeros, which must not be divided by zero."""


def rope_kv_write(
    qkv: Tensor, rotary: RotaryRows, cache: PagedCache, slots: Tensor, norms: HeadNorms | None = None
) -> Tensor:
    """Write keys and values in place; return the queries. qkv: [tokens, heads, d], rows of heads dense."""
    heads = qkv.shape[1] - 2 * cache.keys.shape[1]
    query = qkv.new_empty((qkv.shape[0], heads, qkv.shape[2]))
    rope_kv_write_launch(qkv, rotary, cache, slots, query, norms=norms, chip=chip_of(qkv.device)).run()
    return query


@jit
def _rotated(
    source: Operand,
    cos_row: Operand,
    sin_row: Operand,
    half: Operand,
    inside: Operand,
    weight: Operand,
    eps: Operand,
    HEAD_DIM: constexpr,
) -> Operand:
    """Both halves of rows, normed if there is a weight, and turned."""
    first = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + half + HEAD_DIM // 2, mask=inside, other=0.0).to(tl.float32)
    if weight is not None:
        squares = tl.sum(first * first + second * second, axis=1)
        inverse_rms = (1.0 / tl.sqrt(squares / HEAD_DIM + eps))[:, None]
        exists = half < HEAD_DIM // 2
        first *= inverse_rms * tl.load(weight + half, mask=exists, other=0.0).to(tl.float32)
        second *= inverse_rms * tl.load(weight + half + HEAD_DIM // 2, mask=exists, other=0.0).to(tl.float32)
    cos = tl.load(cos_row + half, mask=inside, other=0.0).to(tl.float32)
    # The table's second half: its first carries the minus sign.
    sin = tl.load(sin_row + half + HEAD_DIM // 2, mask=inside, other=0.0).to(tl.float32)
    return first * cos - second * sin, second * cos + first * sin


@jit
def _write_rows(
    pool: Operand,
    scales: Operand,
    at: Operand,
    scale_at: Operand,
    first: Operand,
    second: Operand,
    half: Operand,
    written: Operand,
    LARGEST: constexpr,
    HEAD_DIM: constexpr,
) -> None:
    """Both halves of new rows to their places, quantized if the pool has scales."""
    if scales is not None:
        largest = tl.maximum(tl.max(tl.abs(first), axis=1), tl.max(tl.abs(second), axis=1))
        scale = tl.maximum(largest / LARGEST, 7.888609052210118e-31)  # SMALLEST_SCALE
        tl.store(scales + scale_at, scale, mask=written)
        first, second = first / scale[:, None], second / scale[:, None]
        if pool.dtype.element_ty == tl.int8:
            first, second = tl.floor(first + 0.5), tl.floor(second + 0.5)
    inside = written[:, None] & (half < HEAD_DIM // 2)
    target = pool + at[:, None] + half
    tl.store(target, first.to(pool.dtype.element_ty), mask=inside)
    tl.store(target + HEAD_DIM // 2, second.to(pool.dtype.element_ty), mask=inside)


@jit
def _rope_kv_write_kernel(
    qkv: Operand,
    cos_table: Operand,
    sin_table: Operand,
    positions: Operand,
    slots: Operand,
    query_weight: Operand,
    key_weight: Operand,
    query: Operand,
    key_pool: Operand,
    value_pool: Operand,
    key_scales: Operand,
    value_scales: Operand,
    tokens: Operand,
    qkv_stride: Operand,
    eps: Operand,
    QUERY_HEADS: constexpr,
    KV_HEADS: constexpr,
    HEAD_DIM: constexpr,
    BLOCK_SIZE: constexpr,
    HEAD_STRIDE: constexpr,
    SCALE_STRIDE: constexpr,
    LARGEST: constexpr,
    TOKENS: constexpr,
    HALF_WIDTH: constexpr,
) -> None:
    # One head of some tokens. Halves apart, so that a value and its partner lie in one lane.
    head = tl.program_id(1)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    exists = token < tokens
    half = tl.arange(0, HALF_WIDTH)[None, :]
    inside = exists[:, None] & (half < HEAD_DIM // 2)
    source = qkv + (token.to(tl.int64) * qkv_stride + head * HEAD_DIM)[:, None]
    turn = (tl.load(positions + token, mask=exists, other=0).to(tl.int64) * HEAD_DIM)[:, None]
    cos, sin = cos_table + turn, sin_table + turn
    if head < QUERY_HEADS:
        first, second = _rotated(source, cos, sin, half, inside, query_weight, eps, HEAD_DIM)
        target = query + ((token.to(tl.int64) * QUERY_HEADS + head) * HEAD_DIM)[:, None] + half
        tl.store(target, first.to(query.dtype.element_ty), mask=inside)
        tl.store(target + HEAD_DIM // 2, second.to(query.dtype.element_ty), mask=inside)
    else:
        slot = tl.load(slots + token, mask=exists, other=-1).to(tl.int64)
        tile = slot // BLOCK_SIZE * KV_HEADS + (head - QUERY_HEADS) % KV_HEADS
        at = tile * HEAD_STRIDE + slot % BLOCK_SIZE * HEAD_DIM
        scale_at = tile * SCALE_STRIDE + slot % BLOCK_SIZE
        written = slot >= 0
        if head < QUERY_HEADS + KV_HEADS:
            first, second = _rotated(source, cos, sin, half, inside, key_weight, eps, HEAD_DIM)
            _write_rows(key_pool, key_scales, at, scale_at, first, second, half, written, LARGEST, HEAD_DIM)
        else:
            first = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
            second = tl.load(source + half + HEAD_DIM // 2, mask=inside, other=0.0).to(tl.float32)
            _write_rows(
                value_pool, value_scales, at, scale_at, first, second, half, written, LARGEST, HEAD_DIM
            )


VALUES = 1024
"""Values of a prefill program: 8 of bf16 per lane of a warp, four times."""


def rope_kv_write_launch(
    qkv: Tensor,
    rotary: RotaryRows,
    cache: PagedCache,
    slots: Tensor,
    query: Tensor,
    *,
    chip: Chip,
    norms: HeadNorms | None = None,
    deterministic: bool = False,
) -> Launch:
    """qkv: [tokens, heads, d], rows of heads dense; query: [tokens, query_heads, d], contiguous.

    ``deterministic``: a head's norm is summed in the same order however many tokens there are.
    """
    (tokens, heads, head_dim), (_, kv_heads, block_size, _) = qkv.shape, cache.keys.shape
    half_width = next_power_of_two(head_dim // 2)
    # A decode batch is spread over programs of few tokens; a chunk's programs are full.
    few = deterministic or tokens * heads * half_width < 4 * chip.processors * VALUES
    block = 4 if few else max(4, VALUES // (2 * half_width))
    return Launch(
        kernel=_rope_kv_write_kernel,
        grid=(-(-tokens // block), heads),
        arguments={
            "qkv": qkv,
            "cos_table": rotary.cos,
            "sin_table": rotary.signed_sin,
            "positions": rotary.positions,
            "slots": slots,
            "query_weight": norms.query if norms else None,
            "key_weight": norms.key if norms else None,
            "query": query,
            "key_pool": cache.keys,
            "value_pool": cache.values,
            "key_scales": cache.key_scales,
            "value_scales": cache.value_scales,
            "tokens": tokens,
            "qkv_stride": qkv.stride(0),
            "eps": norms.eps if norms else 0.0,
        },
        constants={
            "QUERY_HEADS": heads - 2 * kv_heads,
            "KV_HEADS": kv_heads,
            "HEAD_DIM": head_dim,
            "BLOCK_SIZE": block_size,
            "HEAD_STRIDE": cache.strides[0],
            "SCALE_STRIDE": cache.strides[1],
            "LARGEST": LARGEST.get(cache.keys.dtype),
            "TOKENS": block,
            "HALF_WIDTH": half_width,
        },
        num_warps=1 if few else 4,
    )


def rope_kv_write_counts(
    tokens: int, query_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, cache_dtype: torch.dtype
) -> Counts:
    """The projection and each token's table rows read once; queries, keys and values (and scales) written."""
    heads = query_heads + 2 * kv_heads
    row, cache_row = head_dim * dtype.itemsize, head_dim * cache_dtype.itemsize
    if cache_dtype in LARGEST:
        cache_row += 4
    written = query_heads * row + 2 * kv_heads * cache_row
    return Counts(
        bytes_read=tokens * (heads * row + row + 16),  # half of each table; position and slot
        bytes_written=tokens * written,
        flops=tokens * (query_heads + kv_heads) * head_dim * 3,
    )
