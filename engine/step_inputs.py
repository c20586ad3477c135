"""A plan's chunks packed into tensors: built in bulk on the host, once per step, for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headway.engine.values import Chunk
from headway.kernels.attention_plan import AttentionPlan, AttentionShape, PagedSequence, plan_attention
from headway.kernels.host_arrays import to_device


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model reads; T tokens of all chunks one after another, in the packer's order."""

    token_ids: Tensor
    """[T] int64."""
    positions: Tensor
    """[T] int64."""
    pool_rows: Tensor
    """[T · kv_heads] int64 (see ``kernels.kv_write``)."""
    attention: AttentionPlan
    logit_rows: Tensor
    """Packed rows whose logits are wanted, in the order of the plan's chunks."""


def pack(
    chunks: Sequence[Chunk],
    tables: Sequence[NDArray[np.int64]],
    shape: AttentionShape,
    *,
    all_logits: bool = False,
) -> StepInputs:
    """Pack chunks with their block tables. Logits: last token of sampling chunks, or every token."""
    lengths = np.array([len(chunk.token_ids) for chunk in chunks], dtype=np.int64)
    order = _packing_order(chunks, lengths)
    starts = np.empty_like(lengths)
    starts[order] = np.concatenate(([0], lengths[order].cumsum()[:-1]))
    packed = [(chunks[i], tables[i], int(starts[i])) for i in order.tolist()]
    positions = np.concatenate([np.arange(c.start, c.start + len(c.token_ids)) for c, _, _ in packed])
    rows = np.concatenate([_first_rows(c, table, shape) for c, table, _ in packed])
    head_rows = rows[:, None] + np.arange(shape.kv_heads) * shape.block_size
    sequences = [
        PagedSequence(start, len(c.token_ids), c.start + len(c.token_ids), t) for c, t, start in packed
    ]
    return StepInputs(
        token_ids=_tensor(
            np.concatenate([np.array(c.token_ids, dtype=np.int64) for c, _, _ in packed]), shape
        ),
        positions=_tensor(positions, shape),
        pool_rows=_tensor(head_rows.reshape(-1), shape),
        attention=plan_attention(sequences, shape),
        logit_rows=_tensor(_logit_rows(chunks, starts, lengths, all_logits=all_logits), shape),
    )


def _packing_order(chunks: Sequence[Chunk], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Single tokens first, longest context first, so that neighbours share an attention group."""
    contexts = np.array([chunk.start for chunk in chunks]) + lengths
    return np.lexsort((-contexts, lengths > 1))


def _first_rows(chunk: Chunk, table: NDArray[np.int64], shape: AttentionShape) -> NDArray[np.int64]:
    """Pool row of each token's first kv head."""
    if len(chunk.token_ids) == 1:
        block, offset = divmod(chunk.start, shape.block_size)
        return table[block : block + 1] * (shape.kv_heads * shape.block_size) + offset
    positions = np.arange(chunk.start, chunk.start + len(chunk.token_ids))
    blocks, offsets = np.divmod(positions, shape.block_size)
    return table[blocks] * (shape.kv_heads * shape.block_size) + offsets


def _logit_rows(
    chunks: Sequence[Chunk], starts: NDArray[np.int64], lengths: NDArray[np.int64], *, all_logits: bool
) -> NDArray[np.int64]:
    if all_logits:
        return np.concatenate([np.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)])
    samples = np.array([chunk.samples for chunk in chunks], dtype=np.bool_)
    return (starts + lengths - 1)[samples]


def _tensor(array: NDArray[np.int64], shape: AttentionShape) -> Tensor:
    return to_device(array, shape.device)
