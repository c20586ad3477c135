"""Merge attention over parts of the keys (Flash-Decoding; Dao et al., 2023).

A part s of a row's keys leaves m_s = max z_j, l_s = Σ 2^(z_j − m_s), a_s = Σ 2^(z_j − m_s) V[j], where z are
the scores times log₂e; then over all of its keys

    m = max_s m_s ;    out = Σ_s 2^(m_s − m) a_s / Σ_s 2^(m_s − m) l_s

partial (a): [slots, kv_heads, rows, d], statistics (m, l): [slots, kv_heads, rows, 2], float32. Row r of a
merge holds token r // group, query head r mod group of the KV head's group.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headway.kernels.host_arrays import int_rows
from headway.kernels.launch import Counts, Launch, next_power_of_two
from headway.kernels.triton_language import Operand, constexpr, jit, tl

MERGE_FIELDS = 4
"""(query_start, query_count, first slot, slots)"""


def split_merge_reference(partial: Tensor, statistics: Tensor, merges: Tensor, out: Tensor) -> None:
    """The formula, merge by merge, into out [tokens, query_heads, d]."""
    kv_heads, group = partial.shape[1], out.shape[1] // partial.shape[1]
    for query_start, query_count, first, count in int_rows(merges):
        rows = query_count * group
        maxima, sums = statistics[first : first + count, :, :rows].unbind(dim=-1)
        weights = torch.exp2(maxima - maxima.amax(dim=0))
        mixed = (weights.unsqueeze(-1) * partial[first : first + count, :, :rows]).sum(dim=0)
        answer = mixed / (weights * sums).sum(dim=0).unsqueeze(-1)
        heads = answer.view(kv_heads, query_count, group, -1).transpose(0, 1)
        out[query_start : query_start + query_count] = heads.flatten(1, 2).to(out.dtype)


@jit
def _split_merge_kernel(
    out: Operand,
    partial: Operand,
    statistics: Operand,
    merges: Operand,
    GROUP: constexpr,
    KV_HEADS: constexpr,
    HEAD_DIM: constexpr,
    FIELDS: constexpr,
    ROWS: constexpr,
    WIDTH: constexpr,
) -> None:
    merge, head, row = merges + tl.program_id(0) * FIELDS, tl.program_id(1), tl.program_id(2)
    query_start, query_count = tl.load(merge), tl.load(merge + 1)
    first_slot, slot_count = tl.load(merge + 2).to(tl.int64), tl.load(merge + 3)
    columns = tl.arange(0, WIDTH)
    inside = columns < HEAD_DIM
    if row < query_count * GROUP:
        part = (first_slot * KV_HEADS + head) * ROWS + row
        # The maximum first: the loads of the sums then wait for nothing but each other.
        largest = float("-inf")
        for slot in range(slot_count):
            largest = tl.maximum(largest, tl.load(statistics + 2 * (part + slot * KV_HEADS * ROWS)))
        total, mixed = 0.0, tl.zeros([WIDTH], tl.float32)
        # One by one, in order: parts that the row does not see add exact zeros, however many there are.
        for slot in range(slot_count):
            place = part + slot * KV_HEADS * ROWS
            weight = tl.exp2(tl.load(statistics + 2 * place) - largest)
            total += weight * tl.load(statistics + 2 * place + 1)
            mixed += weight * tl.load(partial + place * HEAD_DIM + columns, mask=inside, other=0.0)
        packed = (query_start + row // GROUP).to(tl.int64)
        target = (packed * KV_HEADS * GROUP + head * GROUP + row % GROUP) * HEAD_DIM
        tl.store(out + target + columns, (mixed / total).to(out.dtype.element_ty), mask=inside)


def split_merge_launch(
    partial: Tensor, statistics: Tensor, merges: Tensor, merge_tokens: int, out: Tensor
) -> Launch:
    """``merge_tokens``: most tokens of a merge. All contiguous; rows that no merge covers stay."""
    _, kv_heads, rows, head_dim = partial.shape
    group = out.shape[1] // kv_heads
    return Launch(
        kernel=_split_merge_kernel,
        grid=(merges.shape[0], kv_heads, merge_tokens * group),
        arguments={"out": out, "partial": partial, "statistics": statistics, "merges": merges},
        constants={
            "GROUP": group,
            "KV_HEADS": kv_heads,
            "HEAD_DIM": head_dim,
            "FIELDS": MERGE_FIELDS,
            "ROWS": rows,
            "WIDTH": next_power_of_two(head_dim),
        },
        num_warps=1,
    )


def split_merge_counts(slots: int, rows: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> Counts:
    """Each part's rows and both numbers read; ``rows``: those written, over all merges and KV heads."""
    read = slots * kv_heads * (head_dim + 2) * 4
    return Counts(read, rows * head_dim * dtype.itemsize, 2 * slots * kv_heads * (head_dim + 1))
