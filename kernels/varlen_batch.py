"""Who attends to what in one step on a GPU: a list of equal pieces of work, made once for all layers.

A *tile* is up to ``rows`` query rows of one sequence and one KV head (tokens × query heads of the group);
its keys are cut at multiples of ``split`` positions into *items*, one program each. Tiles of several items
leave partial sums in *slots*, which a second launch merges: a *merge* is one such tile.

    item   = (first line, query_start, query_count, first_position, key_start, key_end, slot or -1)
    merge  = (query_start, query_count, first slot, slots)

Block tables lie one after another in *lines* of 16 blocks, each sequence's from a line of its own on: what
is uploaded is as long as the contexts are. Items are ordered longest first, so that the last to finish are
short (Flash-Decoding; FlashInfer's plan). A captured graph is padded with items and merges that do nothing:
zeros, with the slot -1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.kernels.attention_plan import AttentionShape, PagedSequence
from headway.kernels.attention_tiles import AttentionTile, attention_variants
from headway.kernels.host_arrays import to_device
from headway.kernels.launch import DEFAULT_TILE, Chip, Counts, next_power_of_two
from headway.kernels.split_merge import MERGE_FIELDS

ITEM_FIELDS = 7

SPLIT_TOKENS = (256, 8192)
"""Fewest and most keys of an item. Fewer, and merging costs more than it spreads."""

FIXED_SPLIT = 1024
"""Keys of an item where results may not depend on the batch."""

PROGRAMS_PER_PROCESSOR = 2
"""Items wanted per multiprocessor and KV head: loads of one hide behind arithmetic of the other."""

MIXED_TOKENS = 16
"""From this many new tokens of one sequence on, tiles for prefill pay for the whole batch."""

DECODE_STAGE_BYTES = (16 << 10, 32 << 10)
"""Keys and values of one pipeline stage of a program: what fits NVIDIA's shared memory thrice, where it is
less than 128 KiB (L4, A10) and where it is more."""

PREFILL_STAGE_BYTES = (16 << 10, 32 << 10)
"""The same for tiles with many rows, by what compiles without spilling registers: larger from H100 on, which
has more than 192 KiB."""

LINE_BLOCKS = 16
"""Blocks of one line of the tables; as their stride it is a multiple of 16, which Triton compiles for."""

ALIGNED = 4
"""int32 values in 16 bytes: parts of the upload start at multiples, or Triton would compile each twice."""


@dataclass(frozen=True, slots=True)
class VarlenBatch:
    """The packed batch as the kernels read it; int32 tensors on the device."""

    items: Tensor
    """[items, 7]"""
    merges: Tensor
    """[merges, 4]"""
    tables: Tensor
    """[lines, 16]: block of each ``block_size`` positions."""
    slots: int
    merge_tokens: int
    """Most tokens of a merge."""
    tile: AttentionTile


@dataclass(frozen=True, slots=True)
class VarlenPlan:
    """The same on the host."""

    items: NDArray[np.int64]
    merges: NDArray[np.int64]
    tables: NDArray[np.int64]
    tile: AttentionTile

    @property
    def slots(self) -> int:
        """Partial sums that the merges read."""
        return int(self.merges[:, 3].sum())


def plan_varlen(
    sequences: Sequence[PagedSequence], shape: AttentionShape, chip: Chip, *, deterministic: bool = False
) -> VarlenBatch:
    """``cut_varlen`` on the device."""
    plan = cut_varlen(sequences, shape, chip, deterministic=deterministic)
    parts = [_padded(part) for part in (plan.items, plan.merges, plan.tables)]
    first, second = len(parts[0]), len(parts[0]) + len(parts[1])
    uploaded = to_device(np.concatenate(parts), shape.device)  # one copy for all
    return VarlenBatch(
        items=uploaded[: plan.items.size].view(-1, ITEM_FIELDS),
        merges=uploaded[first : first + plan.merges.size].view(-1, MERGE_FIELDS),
        tables=uploaded[second : second + plan.tables.size].view(plan.tables.shape),
        slots=plan.slots,
        merge_tokens=int(plan.merges[:, 1].max(initial=0)),
        tile=plan.tile,
    )


def cut_varlen(
    sequences: Sequence[PagedSequence], shape: AttentionShape, chip: Chip, *, deterministic: bool = False
) -> VarlenPlan:
    """Cut the batch into items; ``deterministic``: so that a token's sums never depend on the batch."""
    queries = np.array([(s.query_start, s.query_len, s.context_len) for s in sequences], dtype=np.int64)
    longest = int(queries[:, 1].max(initial=0))
    tile = attention_tile(shape, longest, chip, deterministic=deterministic)
    tiles = _tiles(queries, shape, tile)
    split = FIXED_SPLIT if deterministic else _split(tiles, shape, chip)
    items, merges = _items(tiles, split)
    first_lines, tables = _tables(sequences)
    items[:, 0] = first_lines[items[:, 0]]
    return VarlenPlan(items, merges, tables, tile)


def attention_tile(
    shape: AttentionShape, longest_query: int, chip: Chip, *, deterministic: bool = False
) -> AttentionTile:
    """The configuration for decodes alone, for a batch with prefill chunks, or one for both.

    As the shape names it, which a chip may have been asked for (``attention_tiles``).
    """
    group = next_power_of_two(shape.query_heads // shape.kv_heads)
    wide = shape.dtype == torch.float32
    stage_bytes = PREFILL_STAGE_BYTES[chip.shared_bytes > 192 << 10]
    rows, skip_masks = 32 if wide else 64, chip.backend == "cuda"
    if deterministic:
        rows, skip_masks = 32, False
    elif longest_query < MIXED_TOKENS:
        # Few rows: as many as the matrix unit's smallest tile, or as one sequence's draft tokens need. Masks
        # cost nothing beside the loads.
        is_small = chip.backend == "cuda" and chip.shared_bytes < 128 << 10
        stage_bytes, skip_masks = DECODE_STAGE_BYTES[not is_small], False
        rows = max(16, min(rows, next_power_of_two(group * longest_query)))
    # Addresses of scales beside those of rows are more than AMD's scalar registers hold for four warps.
    is_crowded = shape.has_eight_bits and chip.backend == "hip" and rows > 32
    key_bytes = 2 * next_power_of_two(shape.head_dim) * shape.dtype.itemsize
    tile = AttentionTile(
        rows=max(rows, group),
        keys=max(16, min(64 if chip.backend == "cuda" else 32, stage_bytes // key_bytes)),
        num_warps=8 if (shape.head_dim > 128 and skip_masks) or is_crowded else 4,
        # AMD's pipeline copies through registers: a second stage costs more of them than it hides.
        num_stages=1 if chip.backend == "hip" else 2 if wide else 3,
        skip_masks=skip_masks,
        # Three products of rounded halves on the matrix unit: float32's accuracy without its plain cores.
        precision="tf32x3" if wide and chip.backend == "cuda" else "ieee",
    )
    name = shape.decode_tile if longest_query == 1 else shape.prefill_tile
    # Drafts have tiles that nobody measures; and in which order ``deterministic`` adds may not depend on a
    # measurement, which comes out otherwise on the next machine.
    if deterministic or name == DEFAULT_TILE or 1 < longest_query < MIXED_TOKENS:
        return tile
    return attention_variants(tile, shape, chip, is_decode=longest_query == 1)[name]


@dataclass(frozen=True, slots=True)
class _Tiles:
    """One element per tile, all int64."""

    sequence: NDArray[np.int64]
    query_start: NDArray[np.int64]
    query_count: NDArray[np.int64]
    first_position: NDArray[np.int64]
    key_start: NDArray[np.int64]
    key_end: NDArray[np.int64]


def _tiles(queries: NDArray[np.int64], shape: AttentionShape, tile: AttentionTile) -> _Tiles:
    """Cut each sequence's new tokens; ``queries`` holds (query_start, query_len, context_len) rows."""
    tokens = tile.rows // (shape.query_heads // shape.kv_heads)
    query_start, query_len, context_len = queries.T
    counts = -(-query_len // tokens)
    sequence, order = _expand(counts)
    before = order * tokens
    query_count = np.minimum(tokens, query_len[sequence] - before)
    first = (context_len - query_len)[sequence] + before
    key_start = np.zeros_like(first)
    if shape.sliding_window is not None:
        # Whole tiles of keys, so that where sums begin does not depend on which tokens share a tile.
        key_start = np.maximum(0, first - shape.sliding_window + 1) // tile.keys * tile.keys
    return _Tiles(
        sequence, query_start[sequence] + before, query_count, first, key_start, first + query_count
    )


def _split(tiles: _Tiles, shape: AttentionShape, chip: Chip) -> int:
    """Keys of an item such that the batch fills the chip, and no item is much longer than an even share."""
    work = int((tiles.key_end - tiles.key_start).sum()) * shape.kv_heads
    share = work // (PROGRAMS_PER_PROCESSOR * chip.processors)
    return min(SPLIT_TOKENS[1], max(SPLIT_TOKENS[0], next_power_of_two(share)))


def filling_items(shape: AttentionShape, chip: Chip) -> int:
    """Items that decodes are cut into at most beside one for each of them, while ``_split`` may choose."""
    # A split s > 256 is over share - 1, and 256 over share - 1 too: work · kv_heads < (s + 1) · programs.
    programs = PROGRAMS_PER_PROCESSOR * chip.processors
    return -(-programs * (SPLIT_TOKENS[0] + 1) // (SPLIT_TOKENS[0] * shape.kv_heads))


def most_decode_items(
    rows: int, longest: int, shape: AttentionShape, chip: Chip, *, deterministic: bool = False
) -> int:
    """No step of so many decodes, over contexts of up to ``longest`` tokens, is cut into more."""
    window = shape.sliding_window
    seen = longest
    if window is not None:
        seen = min(longest, window + attention_tile(shape, 1, chip, deterministic=deterministic).keys - 1)

    def of_each(split: int) -> int:
        # What a window leaves may begin anywhere in a split.
        return min(-(-longest // split), 1 + -(-(seen - 1) // split))

    if deterministic:
        return rows * of_each(FIXED_SPLIT)
    # A window may cut each once more.
    chosen = rows * (1 if window is None else 2) + filling_items(shape, chip)
    return min(rows * of_each(SPLIT_TOKENS[0]), max(chosen, rows * of_each(SPLIT_TOKENS[1])))


def _items(tiles: _Tiles, split: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(items [n, 7] longest first, merges [m, 4])"""
    first_part = tiles.key_start // split
    parts = (tiles.key_end - 1) // split - first_part + 1
    tile, order = _expand(parts)
    merged = parts > 1
    slots_before = np.cumsum(parts * merged) - parts * merged
    part = first_part[tile] + order
    key_start = np.maximum(tiles.key_start[tile], part * split)
    key_end = np.minimum(tiles.key_end[tile], (part + 1) * split)
    slot = np.where(merged[tile], slots_before[tile] + order, -1)
    columns = (tiles.sequence, tiles.query_start, tiles.query_count, tiles.first_position)
    items = np.stack([*(column[tile] for column in columns), key_start, key_end, slot], axis=1)
    merges = np.stack([tiles.query_start, tiles.query_count, slots_before, parts], axis=1)[merged]
    return items[np.argsort(key_start - key_end, kind="stable")], merges


def _expand(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(owner, order within the owner) of ``counts[i]`` things of each owner i."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]


def _tables(sequences: Sequence[PagedSequence]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(each sequence's first line, all lines [lines, 16])"""
    lines = np.array([-(-len(s.table) // LINE_BLOCKS) for s in sequences], dtype=np.int64)
    first_lines = np.cumsum(lines) - lines
    tables = np.zeros((int(lines.sum()), LINE_BLOCKS), dtype=np.int64)
    blocks = tables.reshape(-1)
    for first, sequence in zip(first_lines * LINE_BLOCKS, sequences, strict=True):
        blocks[first : first + len(sequence.table)] = sequence.table
    return first_lines, tables


def _padded(part: NDArray[np.int64]) -> NDArray[np.int32]:
    return np.pad(part.reshape(-1), (0, -part.size % ALIGNED)).astype(np.int32)


def varlen_attention_counts(
    lengths: Sequence[tuple[int, int]], shape: AttentionShape, cache_dtype: torch.dtype
) -> Counts:
    """Of (new, context) tokens of each sequence: every key that is seen, queries and answers, all once."""
    window = shape.sliding_window
    pairs = keys = 0
    for new, context in lengths:
        first = context - new
        keys += context if window is None else context - max(0, first - window + 1)
        # Σ p + 1 over positions p, and what the window hides of it.
        pairs += new * (first + 1) + new * (new - 1) // 2
        if window is not None:
            start, end = max(first + 1, window + 1), context  # contexts longer than the window
            pairs -= sum(range(start - window, end - window + 1))
    cache_row = shape.head_dim * cache_dtype.itemsize + (4 if cache_dtype.itemsize == 1 else 0)
    tokens = sum(new for new, _ in lengths)
    query_bytes = tokens * shape.query_heads * shape.head_dim * shape.dtype.itemsize
    return Counts(
        bytes_read=query_bytes + 2 * keys * shape.kv_heads * cache_row,
        bytes_written=query_bytes,
        flops=4 * pairs * shape.query_heads * shape.head_dim,
    )
