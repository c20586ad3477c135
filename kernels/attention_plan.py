"""Who attends to what in one step: index and mask tensors, made once and shared by every layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.kernels.host_arrays import to_device
from headway.kernels.launch import DEFAULT_TILE

SPLIT_COST_TILES = 64
"""Padded (sequence, block) pairs that cost as much per layer as one more group's overhead (measured)."""

SCORE_BYTES = 5 << 19
"""Most scores of one prefill tile: 2.5 MB, measured best for 512 new tokens over 512 to 2,048 keys."""

TILE_TOKENS = (16, 128)
"""Fewest and most query tokens of a prefill tile."""

GROUP_BYTES = 16 << 20
"""Most gathered keys of one group: half of a common 32 MB last-level cache."""


@dataclass(frozen=True, slots=True)
class PagedSequence:
    """One sequence's part of the packed batch: its last ``query_len`` of ``context_len`` tokens are new."""

    query_start: int
    query_len: int
    context_len: int
    table: NDArray[np.int64]
    """Block of each ``block_size`` positions, at least up to ``context_len``."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Consecutive sequences with one new token each, padded to the same number of blocks."""

    query_start: int
    count: int
    tile_rows: Tensor
    """[count · kv_heads · blocks] rows of the pool seen as [blocks · kv_heads, block_size · d]."""
    mask: Tensor
    """[count · kv_heads, 1, blocks · block_size], 0 where visible, else -inf, in the query's dtype."""


@dataclass(frozen=True, slots=True)
class QueryTile:
    """Some new tokens of a span, with the gathered keys that any of them sees."""

    query_start: int
    query_end: int
    key_start: int
    key_end: int
    mask: Tensor
    """[1, tokens · query heads per kv head, keys], 0 where visible, else -inf, in the query's dtype."""


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """One sequence with several new tokens."""

    tile_rows: Tensor
    """[kv_heads · blocks] rows of the pool, from the first block that any of its tokens sees."""
    tiles: tuple[QueryTile, ...]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Groups that run together, in the order of the packed tokens, covering each once."""

    groups: tuple[DecodeGroup | PrefillSpan, ...]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What stays the same from step to step."""

    query_heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    sliding_window: int | None
    dtype: torch.dtype
    device: torch.device
    has_eight_bits: bool = False
    """Of keys and values in the cache, each head of a token with a scale."""
    decode_tile: str = DEFAULT_TILE
    """On a GPU: the name among ``attention_tiles`` of what was measured to be fastest, for decodes alone."""
    prefill_tile: str = DEFAULT_TILE
    """The same with prefill chunks."""

    @property
    def tile_bytes(self) -> int:
        """Bytes of the keys of one block, all heads."""
        return self.kv_heads * self.block_size * self.head_dim * self.dtype.itemsize


def plan_attention(sequences: Sequence[PagedSequence], shape: AttentionShape) -> AttentionPlan:
    """Group the sequences: neighbouring decodes that need about as many blocks run together."""
    groups: list[DecodeGroup | PrefillSpan] = []
    for run in _runs(sequences):
        if run[0].query_len > 1:
            groups.append(_prefill_span(run[0], shape))
        else:
            groups += [_decode_group(run[i:j], shape) for i, j in _split(_block_counts(run, shape), shape)]
    return AttentionPlan(tuple(groups))


def _runs(sequences: Sequence[PagedSequence]) -> Iterator[Sequence[PagedSequence]]:
    """Maximal runs of neighbouring decodes; each prefill alone."""
    start = 0
    for index, sequence in enumerate(sequences):
        if sequence.query_len != 1:
            if start < index:
                yield sequences[start:index]
            yield sequences[index : index + 1]
            start = index + 1
    if start < len(sequences):
        yield sequences[start:]


def _first_block(position: int, shape: AttentionShape) -> int:
    """First block that the token at ``position`` sees."""
    if shape.sliding_window is None:
        return 0
    return max(0, position - shape.sliding_window + 1) // shape.block_size


def _block_counts(run: Sequence[PagedSequence], shape: AttentionShape) -> NDArray[np.int64]:
    return np.array(
        [(s.context_len - 1) // shape.block_size + 1 - _first_block(s.context_len - 1, shape) for s in run]
    )


def _split(counts: NDArray[np.int64], shape: AttentionShape) -> Iterator[tuple[int, int]]:
    """Half-open ranges of a run that pay for their own group; few when counts come largest first."""
    pending = [(0, len(counts))]
    while pending:
        start, end = pending.pop()
        inside = counts[start:end]
        longest = int(inside.max())
        gains = (longest - inside) * np.arange(end - start, 0, -1)
        best = int(gains.argmax())
        if best > 0 and gains[best] > SPLIT_COST_TILES:
            pending += [(start + best, end), (start, start + best)]
        else:
            most = max(1, GROUP_BYTES // (shape.tile_bytes * longest))
            yield from ((i, min(i + most, end)) for i in range(start, end, most))


def _decode_group(run: Sequence[PagedSequence], shape: AttentionShape) -> DecodeGroup:
    counts = _block_counts(run, shape)
    blocks = int(counts.max())
    tables = np.empty((len(run), blocks), dtype=np.int64)
    firsts = np.empty((len(run), 1), dtype=np.int64)
    for row, (sequence, count) in enumerate(zip(run, counts, strict=True)):
        first = _first_block(sequence.context_len - 1, shape)
        tables[row, :count] = sequence.table[first : first + count]
        # Padding repeats the sequence's own block: whatever a stranger's block holds cannot reach this
        # answer.
        tables[row, count:] = tables[row, count - 1]
        firsts[row] = first * shape.block_size
    positions = firsts + np.arange(blocks * shape.block_size)
    contexts = np.array([[s.context_len] for s in run])
    visible = positions < contexts
    if shape.sliding_window is not None:
        visible &= positions >= contexts - shape.sliding_window
    mask = np.where(visible, np.float32(0), np.float32("-inf"))
    return DecodeGroup(
        query_start=run[0].query_start,
        count=len(run),
        tile_rows=_tile_rows(tables, shape),
        mask=_tensor(mask, shape).to(shape.dtype).repeat_interleave(shape.kv_heads, dim=0).unsqueeze(1),
    )


def _prefill_span(sequence: PagedSequence, shape: AttentionShape) -> PrefillSpan:
    start = sequence.context_len - sequence.query_len
    first = _first_block(start, shape)
    end = (sequence.context_len - 1) // shape.block_size + 1
    tokens = _tile_tokens(sequence.context_len - first * shape.block_size, shape)
    tiles = [
        _query_tile(sequence, position, min(position + tokens, sequence.context_len), shape)
        for position in range(start, sequence.context_len, tokens)
    ]
    return PrefillSpan(_tile_rows(sequence.table[None, first:end], shape), tuple(tiles))


def _tile_tokens(key_len: int, shape: AttentionShape) -> int:
    """Query tokens per tile: as many as keep the scores in cache."""
    per_token = shape.query_heads * key_len * shape.dtype.itemsize
    return max(TILE_TOKENS[0], min(TILE_TOKENS[1], SCORE_BYTES // per_token))


def _query_tile(sequence: PagedSequence, start: int, end: int, shape: AttentionShape) -> QueryTile:
    """Tokens at positions ``[start, end)``; keys that none of them sees are left out."""
    window = shape.sliding_window
    gathered = _first_block(sequence.context_len - sequence.query_len, shape) * shape.block_size
    key_start = gathered if window is None else max(gathered, start - window + 1)
    queries, keys = np.arange(start, end)[:, None], np.arange(key_start, end)[None, :]
    visible = keys <= queries
    if window is not None:
        visible &= keys > queries - window
    mask = _tensor(np.where(visible, np.float32(0), np.float32("-inf")), shape).to(shape.dtype)
    offset = sequence.query_start + sequence.query_len - sequence.context_len
    return QueryTile(
        query_start=start + offset,
        query_end=end + offset,
        key_start=key_start - gathered,
        key_end=end - gathered,
        mask=mask.repeat_interleave(shape.query_heads // shape.kv_heads, dim=0).unsqueeze(0),
    )


def _tile_rows(tables: NDArray[np.int64], shape: AttentionShape) -> Tensor:
    """Rows of (sequence, head, block), in that order, of the pool seen as [blocks · kv_heads, …]."""
    heads = np.arange(shape.kv_heads)[None, :, None]
    return _tensor((tables[:, None, :] * shape.kv_heads + heads).reshape(-1), shape)


def _tensor(array: NDArray[np.int64] | NDArray[np.float32], shape: AttentionShape) -> Tensor:
    return to_device(array, shape.device)
