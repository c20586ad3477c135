"""Paged attention on a GPU: prefill chunks and decodes in one launch, long contexts split over programs.

The formula is ``paged_attention``'s, with an optional logit soft cap c (Gemma 2, arXiv 2408.00118) and an
optional quantized cache whose pools hold K[j] / a_j and V[j] / b_j with one scale per token and head:

    s_j      = scale · (q · K[j]) ;  s_j ← c · tanh(s_j / c)            K[j] = a_j · key_pool[…]
    out      = Σ_j e^(s_j − m) V[j] / Σ_j e^(s_j − m)                   m = max_j s_j, j visible

A program takes one item of ``varlen_batch``: all query heads of one KV head over up to ``rows`` rows, so
that keys are read once per group (GQA packing), and some keys in tiles with the running maximum (Dao,
FlashAttention-2, arXiv 2307.08691). Split items leave (Σ e^(s−m) V, m, Σ e^(s−m)), merged by a second launch
(Flash-Decoding). Exponentials are powers of two: log₂e is folded into the scores.

With masks never skipped and splits at fixed positions, what lies outside a token's view adds exact zeros:
its result is the same alone, in any batch and in any chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.kernels.launch import Launch, next_power_of_two
from headway.kernels.split_merge import split_merge_launch
from headway.kernels.triton_language import Operand, constexpr, jit, tl
from headway.kernels.varlen_batch import ITEM_FIELDS, VarlenBatch


@dataclass(frozen=True, slots=True)
class PagedCache:
    """One layer's pools [blocks, kv_heads, block_size, d]; quantized ones with float32 scales per row.

    Rows are dense and blocks follow each other; between heads there may be more, such as the head's scales.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    """[blocks, kv_heads, block_size]"""
    value_scales: Tensor | None = None

    @property
    def strides(self) -> tuple[int, int]:
        """(values, scales) from a head to the next one of its block."""
        scales = self.key_scales
        return self.keys.stride(1), 0 if scales is None else scales.stride(1)


def varlen_attention(
    query: Tensor,
    cache: PagedCache,
    batch: VarlenBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """[tokens, query_heads, d] for every packed token; query's rows of heads are dense."""
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for launch in varlen_attention_launches(
        query, cache, batch, out, scale=scale, sliding_window=sliding_window, soft_cap=soft_cap
    ):
        launch.run()
    return out


@jit
def _load_rows(pointers: Operand, columns: Operand, HEAD_DIM: constexpr, WIDTH: constexpr) -> Operand:
    """Whole rows of a pool; pools may hold 8-bit numbers, each of which the query's type holds exactly."""
    if WIDTH > HEAD_DIM:
        return tl.load(pointers, mask=columns[None, :] < HEAD_DIM, other=0.0)
    else:  # noqa: RET505  # Triton wants both ends of a compile-time branch
        return tl.load(pointers)


@jit
def _tile_of_keys(
    state: Operand,
    query: Operand,
    key_pool: Operand,
    value_pool: Operand,
    key_scales: Operand,
    value_scales: Operand,
    table: Operand,
    head: Operand,
    position: Operand,
    start: Operand,
    key_end: Operand,
    scale: Operand,
    KV_HEADS: constexpr,
    HEAD_DIM: constexpr,
    BLOCK_SIZE: constexpr,
    HEAD_STRIDE: constexpr,
    SCALE_STRIDE: constexpr,
    WINDOW: constexpr,
    SOFT_CAP: constexpr,
    MASKED: constexpr,
    PRECISION: constexpr,
    KEYS: constexpr,
    WIDTH: constexpr,
) -> Operand:
    running_max, total, mixed = state
    keys = start + tl.arange(0, KEYS)
    # Past the end the last key is read again and masked below, so that loads need no masks.
    held = tl.minimum(keys, key_end - 1) if MASKED else keys
    block = tl.load(table + held // BLOCK_SIZE).to(tl.int64)
    start_of_head, row = (block * KV_HEADS + head) * HEAD_STRIDE, held % BLOCK_SIZE
    columns = tl.arange(0, WIDTH)
    offsets = (start_of_head + row * HEAD_DIM)[:, None] + columns[None, :]
    scale_at = start_of_head // HEAD_STRIDE * SCALE_STRIDE + row
    key = _load_rows(key_pool + offsets, columns, HEAD_DIM, WIDTH).to(query.dtype)
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
    if key_scales is not None:
        scores *= tl.load(key_scales + scale_at)[None, :]
    if SOFT_CAP is not None:
        # c·tanh(s/c) = 2c·σ(2s/c) − c
        scores = 2.0 * SOFT_CAP / (1.0 + tl.exp(-2.0 / SOFT_CAP * scores)) - SOFT_CAP
    scores *= 1.4426950408889634  # log₂e
    if MASKED:
        visible = (keys < key_end)[None, :] & (keys[None, :] <= position[:, None])
        if WINDOW is not None:
            visible &= keys[None, :] > position[:, None] - WINDOW
        scores = tl.where(visible, scores, float("-inf"))
    new_max = tl.maximum(running_max, tl.max(scores, axis=1))
    # A row that has seen no key yet: −inf − 0 stays −inf, where −inf − −inf would be no number.
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.exp2(scores - shift[:, None])
    kept = tl.exp2(running_max - shift)
    total = total * kept + tl.sum(weights, axis=1)
    if value_scales is not None:
        weights *= tl.load(value_scales + scale_at)[None, :]
    value = _load_rows(value_pool + offsets, columns, HEAD_DIM, WIDTH).to(query.dtype)
    # The matrix unit multiplies in the model's type and adds in float32.
    mixed = mixed * kept[:, None] + tl.dot(weights.to(query.dtype), value, input_precision=PRECISION)
    return new_max, total, mixed


@jit
def _varlen_attention_kernel(
    query: Operand,
    key_pool: Operand,
    value_pool: Operand,
    key_scales: Operand,
    value_scales: Operand,
    out: Operand,
    partial: Operand,
    statistics: Operand,
    items: Operand,
    tables: Operand,
    query_stride: Operand,
    table_stride: Operand,
    scale: Operand,
    GROUP: constexpr,
    KV_HEADS: constexpr,
    HEAD_DIM: constexpr,
    BLOCK_SIZE: constexpr,
    HEAD_STRIDE: constexpr,
    SCALE_STRIDE: constexpr,
    WINDOW: constexpr,
    SOFT_CAP: constexpr,
    SKIP_MASKS: constexpr,
    PRECISION: constexpr,
    ITEM_FIELDS: constexpr,
    ROWS: constexpr,
    KEYS: constexpr,
    WIDTH: constexpr,
) -> None:
    item = items + tl.program_id(0) * ITEM_FIELDS
    head = tl.program_id(1)
    table = tables + tl.load(item).to(tl.int64) * table_stride
    query_start = tl.load(item + 1)
    query_count = tl.load(item + 2)
    first_position = tl.load(item + 3)
    key_start = tl.load(item + 4)
    key_end = tl.load(item + 5)
    slot = tl.load(item + 6)

    rows, columns = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    token = rows // GROUP
    position = first_position + token
    packed = (query_start + token).to(tl.int64)
    query_head = head * GROUP + rows % GROUP
    written = (token < query_count)[:, None] & (columns < HEAD_DIM)[None, :]
    source = packed * query_stride + query_head * HEAD_DIM
    tile = tl.load(query + source[:, None] + columns[None, :], mask=written, other=0.0)

    state = (
        tl.full([ROWS], float("-inf"), tl.float32),
        tl.zeros([ROWS], tl.float32),
        tl.zeros([ROWS, WIDTH], tl.float32),
    )
    unmasked_start, unmasked_end = key_start, key_start
    if SKIP_MASKS:
        # [key_start … unmasked_start … unmasked_end … key_end): every row sees all of the middle.
        if WINDOW is not None:
            last_start = tl.maximum(key_start, first_position + query_count - WINDOW)
            unmasked_start = tl.minimum(key_end, key_start + tl.cdiv(last_start - key_start, KEYS) * KEYS)
        seen_by_all = tl.minimum(first_position + 1, key_end)
        unmasked_end = unmasked_start + tl.maximum(0, seen_by_all - unmasked_start) // KEYS * KEYS
        if WINDOW is not None:
            for start in range(key_start, unmasked_start, KEYS):
                state = _tile_of_keys(
                    state, tile, key_pool, value_pool, key_scales, value_scales, table, head, position,
                    start, key_end, scale,
                    KV_HEADS, HEAD_DIM, BLOCK_SIZE, HEAD_STRIDE, SCALE_STRIDE, WINDOW, SOFT_CAP, True,
                    PRECISION, KEYS, WIDTH,
                )  # fmt: skip
        for start in range(unmasked_start, unmasked_end, KEYS):
            state = _tile_of_keys(
                state, tile, key_pool, value_pool, key_scales, value_scales, table, head, position,
                start, key_end, scale,
                KV_HEADS, HEAD_DIM, BLOCK_SIZE, HEAD_STRIDE, SCALE_STRIDE, WINDOW, SOFT_CAP, False,
                PRECISION, KEYS, WIDTH,
            )  # fmt: skip
    for start in range(unmasked_end, key_end, KEYS):
        state = _tile_of_keys(
            state, tile, key_pool, value_pool, key_scales, value_scales, table, head, position,
            start, key_end, scale,
            KV_HEADS, HEAD_DIM, BLOCK_SIZE, HEAD_STRIDE, SCALE_STRIDE, WINDOW, SOFT_CAP, True,
            PRECISION, KEYS, WIDTH,
        )  # fmt: skip

    running_max, total, mixed = state
    if slot < 0:
        target = (packed * KV_HEADS * GROUP + query_head) * HEAD_DIM
        # A row that pads the tile may see no key: nothing reads it, but it must not divide by zero.
        answer = (mixed / tl.where(total > 0.0, total, 1.0)[:, None]).to(out.dtype.element_ty)
        tl.store(out + target[:, None] + columns[None, :], answer, mask=written)
    else:
        part = (slot.to(tl.int64) * KV_HEADS + head) * ROWS + rows
        tl.store(partial + part[:, None] * HEAD_DIM + columns[None, :], mixed, mask=written)
        tl.store(statistics + 2 * part, running_max)
        tl.store(statistics + 2 * part + 1, total)


def varlen_attention_launches(
    query: Tensor,
    cache: PagedCache,
    batch: VarlenBatch,
    out: Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> tuple[Launch, ...]:
    """The items, and the merges if there are any; out is contiguous."""
    _, kv_heads, block_size, head_dim = cache.keys.shape
    tile = batch.tile
    parts = (batch.slots, kv_heads, tile.rows)
    partial = torch.empty((*parts, head_dim), dtype=torch.float32, device=query.device)
    statistics = torch.empty((*parts, 2), dtype=torch.float32, device=query.device)
    attend = Launch(
        kernel=_varlen_attention_kernel,
        grid=(batch.items.shape[0], kv_heads),
        arguments={
            "query": query,
            "key_pool": cache.keys,
            "value_pool": cache.values,
            "key_scales": cache.key_scales,
            "value_scales": cache.value_scales,
            "out": out,
            "partial": partial,
            "statistics": statistics,
            "items": batch.items,
            "tables": batch.tables,
            "query_stride": query.stride(0),
            "table_stride": batch.tables.stride(0),
            "scale": scale,
        },
        constants={
            "GROUP": query.shape[1] // kv_heads,
            "KV_HEADS": kv_heads,
            "HEAD_DIM": head_dim,
            "BLOCK_SIZE": block_size,
            "HEAD_STRIDE": cache.strides[0],
            "SCALE_STRIDE": cache.strides[1],
            "WINDOW": sliding_window,
            "SOFT_CAP": soft_cap,
            "SKIP_MASKS": tile.skip_masks,
            "PRECISION": tile.precision,
            "ITEM_FIELDS": ITEM_FIELDS,
            "ROWS": tile.rows,
            "KEYS": tile.keys,
            "WIDTH": max(16, next_power_of_two(head_dim)),  # the matrix unit's least depth
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    if batch.slots == 0:
        return (attend,)
    return attend, split_merge_launch(partial, statistics, batch.merges, batch.merge_tokens, out)
