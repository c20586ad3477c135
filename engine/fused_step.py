"""A plan packed for the GPU's kernels: one bucket of shapes, and the arrays that are uploaded for it.

A bucket is a shape that steps are padded to: tokens and rows that nothing follows from (slot -1, position 0),
items and merges that do nothing. So a few hundred graphs serve every batch up to ``GRAPH_TOKENS`` tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.engine.step_buffers import Field
from headway.engine.step_inputs import logit_rows, place
from headway.engine.values import Chunk
from headway.kernels.attention_plan import AttentionShape
from headway.kernels.attention_tiles import AttentionTile
from headway.kernels.launch import Chip, next_power_of_two
from headway.kernels.split_merge import MERGE_FIELDS
from headway.kernels.varlen_batch import (
    ITEM_FIELDS,
    LINE_BLOCKS,
    VarlenBatch,
    VarlenPlan,
    cut_varlen,
    filling_items,
)

GRAPH_TOKENS = 512
"""More tokens keep a GPU busy for longer than their launches take the host."""

GRAPH_ITEMS = 2048
"""The same of attention's items, each of at least 256 keys; and what they leave to be merged takes memory."""

DECODE_TOKENS = (
    1,
    2,
    4,
    8,
    16,
    24,
    32,
    40,
    48,
    56,
    64,
    80,
    96,
    112,
    128,
    160,
    192,
    224,
    256,
    320,
    384,
    448,
    512,
)
"""Padded sizes of steps in which every request computes one token; from 16 on a third is empty at most."""

MIXED_TOKENS = (16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512)
MIXED_ROWS = (0, 16, 64, 256, 512)
"""The same with prefill chunks, coarser where little work is done per unit."""

FEWEST_ITEMS = 16
"""Of attention. From here on powers of two: an item that does nothing takes about a microsecond. Decodes that
are split have as many as fill the chip, since how they are cut changes with every block of their contexts:
what does nothing then runs where nothing else would."""

NO_ITEM = (0,) * (ITEM_FIELDS - 1) + (-1,)


@dataclass(frozen=True, slots=True)
class Bucket:
    """What a step is padded to, and which launches it takes. Equal buckets make equal launches."""

    tokens: int
    rows: int
    """Rows whose logits are wanted."""
    items: int
    """Of attention's work; half as many merges, and as many slots, where it ``is_split``."""
    is_split: bool
    tile: AttentionTile
    is_decode: bool
    """Every request computes one token."""
    is_kept: bool
    """Small enough to come again: its memory and its graph are kept."""
    is_penalised: bool = False
    biases: int = 0
    """Logits that something is added to."""
    top_logprobs: int | None = None
    """None: no row wants log-probabilities; else how many of the most likely ones are looked up."""
    is_masked: bool = False
    """Some rows are held to a grammar: they choose after the forward pass, not with it."""

    @property
    def merges(self) -> int:
        """Tiles of several items: each has two at least."""
        return self.items // 2 if self.is_split else 0


@dataclass(frozen=True, slots=True)
class FusedInputs:
    """What the model reads, on the device."""

    token_ids: Tensor
    """[T] int64; -1 - i: what the step before chose for its row i."""
    positions: Tensor
    """[T] int64."""
    slots: Tensor
    """[T] int64 (see ``kernels.rope_kv_write``)."""
    logit_rows: Tensor
    """[R] int64: packed tokens whose logits are wanted, in the plan's order."""
    batch: VarlenBatch


@dataclass(frozen=True, slots=True)
class PackedStep:
    """A plan's chunks as arrays, not padded yet."""

    content: Mapping[str, NDArray[Any]]
    attention: VarlenPlan
    is_decode: bool
    filling_items: int
    """Of attention, that fill the chip."""

    @property
    def tokens(self) -> int:
        """New tokens."""
        return len(self.content["token_ids"])

    @property
    def rows(self) -> int:
        """Rows whose logits are wanted."""
        return len(self.content["logit_rows"])

    @property
    def lines(self) -> int:
        """Of block tables."""
        return len(self.attention.tables)

    def bucket(self, *, has_graphs: bool) -> Bucket:
        """The smallest bucket that holds the step; without graphs, or for a large step, its own shape."""
        items, is_split = len(self.attention.items), len(self.attention.merges) > 0
        tokens, rows = self.tokens, self.rows
        is_kept = has_graphs and max(tokens, rows) <= GRAPH_TOKENS and items <= GRAPH_ITEMS
        if is_kept and self.is_decode:
            tokens = _at_least(tokens, DECODE_TOKENS)
            rows = tokens if rows else 0
        elif is_kept:
            tokens, rows = _at_least(tokens, MIXED_TOKENS), _at_least(rows, MIXED_ROWS)
        if is_kept:
            fewest = tokens + self.filling_items if is_split and self.is_decode else 0
            items = padded_items(max(items, fewest))
        return Bucket(tokens, rows, items, is_split, self.attention.tile, self.is_decode, is_kept)


def pack_fused(
    chunks: Sequence[Chunk],
    tables: Sequence[NDArray[np.int64]],
    token_ids: Sequence[Sequence[int]],
    shape: AttentionShape,
    chip: Chip,
    *,
    all_logits: bool = False,
    deterministic: bool = False,
) -> PackedStep:
    """Pack chunks with their block tables; ``token_ids`` stand for theirs, with negative ones as above.

    ``deterministic``: see ``cut_varlen``.
    """
    packed = place(chunks, tables)
    sequences = [part.sequence() for part in packed]
    attention = cut_varlen(sequences, shape, chip, deterministic=deterministic)
    return PackedStep(
        content={
            "token_ids": np.concatenate([_ids(token_ids[part.index]) for part in packed]),
            "positions": np.concatenate([part.positions() for part in packed]),
            "slots": np.concatenate([part.slots(shape.block_size) for part in packed]),
            "logit_rows": logit_rows(chunks, packed, all_logits=all_logits),
            "items": attention.items,
            "merges": attention.merges,
            "tables": attention.tables,
        },
        attention=attention,
        is_decode=all(len(part.chunk.token_ids) == 1 for part in packed),
        filling_items=filling_items(shape, chip),
    )


def padded_items(items: int) -> int:
    """What a bucket has in their place."""
    return max(FEWEST_ITEMS, next_power_of_two(items))


def input_fields(bucket: Bucket, lines: int) -> tuple[tuple[Field, ...], Field]:
    """(fields of the model's inputs, the block tables' field, which has to come last)"""
    whole = torch.int64
    fields = (
        Field("token_ids", whole, (bucket.tokens,)),
        Field("positions", whole, (bucket.tokens,)),
        Field("slots", whole, (bucket.tokens,), padding=-1),
        Field("logit_rows", whole, (bucket.rows,)),
        Field("items", torch.int32, (bucket.items, ITEM_FIELDS), padding=NO_ITEM),
        Field("merges", torch.int32, (bucket.merges, MERGE_FIELDS)),
    )
    return fields, Field("tables", torch.int32, (lines, LINE_BLOCKS))


def fused_inputs(bucket: Bucket, arrays: Mapping[str, Tensor], shape: AttentionShape) -> FusedInputs:
    """The uploaded fields as the model reads them."""
    tile = bucket.tile
    batch = VarlenBatch(
        items=arrays["items"],
        merges=arrays["merges"],
        tables=arrays["tables"],
        slots=bucket.items if bucket.is_split else 0,
        merge_tokens=tile.rows // (shape.query_heads // shape.kv_heads) if bucket.is_split else 0,
        tile=tile,
    )
    return FusedInputs(arrays["token_ids"], arrays["positions"], arrays["slots"], arrays["logit_rows"], batch)


def _at_least(count: int, sizes: tuple[int, ...]) -> int:
    return sizes[bisect_left(sizes, count)]


def _ids(tokens: Sequence[int]) -> NDArray[np.int64]:
    return np.array(tokens, dtype=np.int64)
