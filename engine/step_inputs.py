"""A plan's chunks packed into tensors: built in bulk on the host, once per step, for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headway.engine.drafts import sampling_rows
from headway.engine.values import Chunk
from headway.kernels.attention_plan import AttentionPlan, AttentionShape, PagedSequence, plan_attention
from headway.kernels.host_arrays import to_device


@dataclass(frozen=True, slots=True)
class TorchAttention:
    """What torch's operations read."""

    plan: AttentionPlan
    pool_rows: Tensor
    """[T · kv_heads] int64 (see ``kernels.kv_write``)."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model reads; T tokens of all chunks one after another, in the packer's order."""

    token_ids: Tensor
    """[T] int64."""
    positions: Tensor
    """[T] int64."""
    attention: TorchAttention
    logit_rows: Tensor
    """Packed rows whose logits are wanted, in the order of the plan's chunks."""


def pack(
    chunks: Sequence[Chunk],
    tables: Sequence[NDArray[np.int64]],
    shape: AttentionShape,
    *,
    all_logits: bool = False,
) -> StepInputs:
    """Pack chunks with their block tables. Logits: last tokens of sampling chunks, or every token."""
    packed = place(chunks, tables)
    return StepInputs(
        token_ids=to_device(np.concatenate([part.token_ids() for part in packed]), shape.device),
        positions=to_device(np.concatenate([part.positions() for part in packed]), shape.device),
        attention=_torch_attention(packed, shape),
        logit_rows=to_device(logit_rows(chunks, packed, all_logits=all_logits), shape.device),
    )


def _torch_attention(packed: Sequence[Packed], shape: AttentionShape) -> TorchAttention:
    slots = np.concatenate([part.slots(shape.block_size) for part in packed])
    blocks, offsets = np.divmod(slots, shape.block_size)
    first_rows = blocks * (shape.kv_heads * shape.block_size) + offsets
    rows = first_rows[:, None] + np.arange(shape.kv_heads) * shape.block_size
    return TorchAttention(
        plan=plan_attention([part.sequence() for part in packed], shape),
        pool_rows=to_device(rows.reshape(-1), shape.device),
    )


@dataclass(frozen=True, slots=True)
class Packed:
    """One chunk in its place."""

    index: int
    """Among the plan's chunks."""
    chunk: Chunk
    table: NDArray[np.int64]
    query_start: int

    def token_ids(self) -> NDArray[np.int64]:
        """Of the chunk."""
        return np.array(self.chunk.token_ids, dtype=np.int64)

    def positions(self) -> NDArray[np.int64]:
        """Of its tokens."""
        return np.arange(self.chunk.start, self.chunk.start + len(self.chunk.token_ids), dtype=np.int64)

    def sequence(self) -> PagedSequence:
        """As attention sees it."""
        length = len(self.chunk.token_ids)
        return PagedSequence(self.query_start, length, self.chunk.start + length, self.table)

    def slots(self, block_size: int) -> NDArray[np.int64]:
        """block · block_size + offset of each token."""
        blocks, offsets = np.divmod(self.positions(), block_size)
        return self.table[blocks] * block_size + offsets


def place(chunks: Sequence[Chunk], tables: Sequence[NDArray[np.int64]]) -> list[Packed]:
    """Single tokens first, longest context first, so that neighbours share an attention group."""

    def rank(index: int) -> tuple[bool, int]:
        chunk = chunks[index]
        return len(chunk.token_ids) > 1, -(chunk.start + len(chunk.token_ids))

    packed: list[Packed] = []
    query_start = 0
    for index in sorted(range(len(chunks)), key=rank):
        packed.append(Packed(index, chunks[index], tables[index], query_start))
        query_start += len(chunks[index].token_ids)
    return packed


def logit_rows(chunks: Sequence[Chunk], packed: Sequence[Packed], *, all_logits: bool) -> NDArray[np.int64]:
    """Rows in the order of the chunks, each request's in the order of its tokens."""
    starts = {part.chunk.key: part.query_start for part in packed}
    if all_logits:
        spans = [(starts[chunk.key], starts[chunk.key] + len(chunk.token_ids)) for chunk in chunks]
        return np.concatenate([np.arange(start, end, dtype=np.int64) for start, end in spans])
    rows = [
        starts[chunk.key] + len(chunk.token_ids) - row
        for chunk in chunks
        for row in range(sampling_rows(chunk), 0, -1)
    ]
    return np.array(rows, dtype=np.int64)
