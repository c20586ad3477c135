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
from headway.kernels.launch import Chip, chip_of
from headway.kernels.varlen_batch import VarlenBatch, plan_varlen


@dataclass(frozen=True, slots=True)
class TorchAttention:
    """What torch's operations read."""

    plan: AttentionPlan
    pool_rows: Tensor
    """[T · kv_heads] int64 (see ``kernels.kv_write``)."""


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """What the GPU's kernels read."""

    batch: VarlenBatch
    slots: Tensor
    """[T] int64 (see ``kernels.rope_kv_write``)."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model reads; T tokens of all chunks one after another, in the packer's order."""

    token_ids: Tensor
    """[T] int64."""
    positions: Tensor
    """[T] int64."""
    attention: TorchAttention | FusedAttention
    logit_rows: Tensor
    """Packed rows whose logits are wanted, in the order of the plan's chunks."""


def pack(
    chunks: Sequence[Chunk],
    tables: Sequence[NDArray[np.int64]],
    shape: AttentionShape,
    *,
    all_logits: bool = False,
    chip: Chip | None = None,
) -> StepInputs:
    """Pack chunks with their block tables. Logits: last tokens of sampling chunks, or every token.

    ``chip``: the GPU whose kernels run; by default the device's, and on a CPU none: torch's operations do.
    """
    packed = _place(chunks, tables)
    if chip is None and shape.device.type == "cuda":
        chip = chip_of(shape.device)
    return StepInputs(
        token_ids=to_device(np.concatenate([part.token_ids() for part in packed]), shape.device),
        positions=to_device(np.concatenate([part.positions() for part in packed]), shape.device),
        attention=_torch_attention(packed, shape) if chip is None else _fused_attention(packed, shape, chip),
        logit_rows=to_device(_logit_rows(chunks, packed, all_logits=all_logits), shape.device),
    )


def _torch_attention(packed: Sequence[_Packed], shape: AttentionShape) -> TorchAttention:
    slots = np.concatenate([part.slots(shape) for part in packed])
    blocks, offsets = np.divmod(slots, shape.block_size)
    first_rows = blocks * (shape.kv_heads * shape.block_size) + offsets
    rows = first_rows[:, None] + np.arange(shape.kv_heads) * shape.block_size
    return TorchAttention(
        plan=plan_attention([part.sequence() for part in packed], shape),
        pool_rows=to_device(rows.reshape(-1), shape.device),
    )


def _fused_attention(packed: Sequence[_Packed], shape: AttentionShape, chip: Chip) -> FusedAttention:
    slots = np.concatenate([part.slots(shape) for part in packed])
    return FusedAttention(
        batch=plan_varlen([part.sequence() for part in packed], shape, chip),
        slots=to_device(slots, shape.device),
    )


@dataclass(frozen=True, slots=True)
class _Packed:
    """One chunk in its place."""

    chunk: Chunk
    table: NDArray[np.int64]
    query_start: int

    def token_ids(self) -> NDArray[np.int64]:
        return np.array(self.chunk.token_ids, dtype=np.int64)

    def positions(self) -> NDArray[np.int64]:
        return np.arange(self.chunk.start, self.chunk.start + len(self.chunk.token_ids), dtype=np.int64)

    def sequence(self) -> PagedSequence:
        length = len(self.chunk.token_ids)
        return PagedSequence(self.query_start, length, self.chunk.start + length, self.table)

    def slots(self, shape: AttentionShape) -> NDArray[np.int64]:
        """block · block_size + offset of each token."""
        blocks, offsets = np.divmod(self.positions(), shape.block_size)
        return self.table[blocks] * shape.block_size + offsets


def _place(chunks: Sequence[Chunk], tables: Sequence[NDArray[np.int64]]) -> list[_Packed]:
    """Single tokens first, longest context first, so that neighbours share an attention group."""

    def rank(index: int) -> tuple[bool, int]:
        chunk = chunks[index]
        return len(chunk.token_ids) > 1, -(chunk.start + len(chunk.token_ids))

    packed: list[_Packed] = []
    query_start = 0
    for index in sorted(range(len(chunks)), key=rank):
        packed.append(_Packed(chunks[index], tables[index], query_start))
        query_start += len(chunks[index].token_ids)
    return packed


def _logit_rows(chunks: Sequence[Chunk], packed: Sequence[_Packed], *, all_logits: bool) -> NDArray[np.int64]:
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
