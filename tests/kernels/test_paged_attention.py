"""Paged attention against plain attention over unpaged keys, in any grouping, chunking and block order."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from headway.kernels.attention_plan import AttentionShape, DecodeGroup, PagedSequence, plan_attention
from headway.kernels.kv_write import kv_write, kv_write_reference
from headway.kernels.paged_attention import paged_attention, paged_attention_reference

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Case:
    """(new tokens, context) of each sequence, and the model's shape."""

    lengths: tuple[tuple[int, int], ...]
    kv_heads: int = 3
    group: int = 3
    head_dim: int = 64
    block_size: int = 16
    window: int | None = None

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.head_dim)


@dataclass(frozen=True, slots=True)
class Batch:
    """Random queries, keys and values of a case, paged into shuffled blocks."""

    case: Case
    query: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    key_pool: Tensor
    value_pool: Tensor
    sequences: list[PagedSequence]

    def to(self, dtype: torch.dtype) -> Batch:
        return Batch(
            self.case,
            self.query.to(dtype),
            [k.to(dtype) for k in self.keys],
            [v.to(dtype) for v in self.values],
            self.key_pool.to(dtype),
            self.value_pool.to(dtype),
            self.sequences,
        )

    def launch(self) -> Tensor:
        case = self.case
        shape = AttentionShape(
            case.kv_heads * case.group,
            case.kv_heads,
            case.head_dim,
            case.block_size,
            case.window,
            self.query.dtype,
            CPU,
        )
        plan = plan_attention(self.sequences, shape)
        return paged_attention(self.query, self.key_pool, self.value_pool, plan, scale=case.scale)

    def naive(self) -> Tensor:
        """Same-dtype attention over unpaged keys with every product and the softmax spelled out."""
        parts: list[Tensor] = []
        for sequence, keys, values in zip(self.sequences, self.keys, self.values, strict=True):
            rows = self.query[sequence.query_start : sequence.query_start + sequence.query_len]
            wide_keys = keys.repeat_interleave(self.case.group, dim=1)
            wide_values = values.repeat_interleave(self.case.group, dim=1)
            positions = torch.arange(sequence.context_len - sequence.query_len, sequence.context_len)[:, None]
            others = torch.arange(sequence.context_len)[None, :]
            visible = others <= positions
            if self.case.window is not None:
                visible &= positions - others < self.case.window
            scores = torch.einsum("thd,jhd->htj", rows, wide_keys) * self.case.scale
            weights = functional.softmax(scores.masked_fill(~visible, float("-inf")).float(), dim=-1)
            parts.append(torch.einsum("htj,jhd->thd", weights.to(rows.dtype), wide_values))
        return torch.cat(parts)


def make_batch(case: Case, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-context // case.block_size) for _, context in case.lengths]
    spare = 3
    order = torch.randperm(sum(counts) + spare, generator=generator).numpy()
    pool_shape = (sum(counts) + spare, case.kv_heads, case.block_size, case.head_dim)
    # Blocks start full of loud numbers: reading one that is not ours, or past the end, cannot go unseen.
    key_pool, value_pool = torch.full(pool_shape, 50.0), torch.full(pool_shape, 50.0)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    sequences: list[PagedSequence] = []
    query_start = used = 0
    for (new, context), count in zip(case.lengths, counts, strict=True):
        table = np.ascontiguousarray(order[used : used + count]).astype(np.int64)
        keys.append(torch.randn(context, case.kv_heads, case.head_dim, generator=generator))
        values.append(torch.randn(context, case.kv_heads, case.head_dim, generator=generator))
        blocks = torch.tensor(table[np.arange(context) // case.block_size])
        offsets = torch.arange(context) % case.block_size
        kv_write_reference(key_pool, keys[-1], blocks, offsets)
        kv_write_reference(value_pool, values[-1], blocks, offsets)
        sequences.append(PagedSequence(query_start, new, context, table))
        query_start += new
        used += count
    query = torch.randn(query_start, case.kv_heads * case.group, case.head_dim, generator=generator)
    return Batch(case, query, keys, values, key_pool, value_pool, sequences)


CASES = [
    Case(((1, 1),)),
    Case(((1, 225),)),
    Case(((1, 16), (1, 17), (1, 15))),
    Case(((1, 900), (1, 40), (1, 39), (1, 3))),
    Case(((37, 37),)),
    Case(((5, 70), (1, 33), (64, 64), (1, 2), (1, 700))),
    Case(((7, 20), (1, 21)), kv_heads=1, group=1, head_dim=8, block_size=1),
    Case(((3, 50), (1, 50)), kv_heads=2, group=7, head_dim=80, block_size=32),
    Case(((1, 100), (1, 9), (30, 90), (25, 25)), window=24),
    Case(((1, 100), (40, 40)), window=1, block_size=8),
    Case(((1, 30), (12, 30)), window=500),
    Case(((300, 300), (150, 700))),
    Case(((300, 400),), kv_heads=2, group=4, head_dim=16, window=70),
]


@pytest.mark.parametrize("case", CASES)
def test_float32_equals_plain_attention(case: Case) -> None:
    batch = make_batch(case)
    exact = batch.naive()
    reference = paged_attention_reference(
        batch.query,
        batch.key_pool,
        batch.value_pool,
        batch.sequences,
        scale=case.scale,
        sliding_window=case.window,
    )
    torch.testing.assert_close(reference, exact, atol=2e-6, rtol=2e-5)
    torch.testing.assert_close(batch.launch(), exact, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("case", CASES)
def test_bfloat16_errs_at_most_twice_as_much_as_plain_bfloat16(case: Case) -> None:
    low = make_batch(case).to(torch.bfloat16)
    exact = low.to(torch.float32).naive()
    naive_error = float((low.naive().float() - exact).abs().max())
    error = float((low.launch().float() - exact).abs().max())
    assert error <= 2 * naive_error + 1e-6


def test_long_decodes_do_not_make_short_ones_pay() -> None:
    case = Case(((1, 4000), *((1, 60),) * 30))
    shape = AttentionShape(9, 3, 64, 16, None, torch.bfloat16, CPU)
    sequences = [
        PagedSequence(i, 1, context, np.zeros(250, np.int64)) for i, (_, context) in enumerate(case.lengths)
    ]
    groups = plan_attention(sequences, shape).groups
    assert [group.count for group in groups if isinstance(group, DecodeGroup)] == [1, 30]


def test_a_group_of_long_decodes_stays_within_its_bytes() -> None:
    shape = AttentionShape(32, 8, 128, 16, None, torch.float32, CPU)
    sequences = [PagedSequence(i, 1, 4096, np.zeros(256, np.int64)) for i in range(5)]
    groups = [group for group in plan_attention(sequences, shape).groups if isinstance(group, DecodeGroup)]
    assert sum(group.count for group in groups) == 5
    assert all(len(group.tile_rows) * 16 * 128 * 4 <= 16 << 20 for group in groups)


def test_a_strangers_broken_numbers_reach_nobody_else() -> None:
    case = Case(((1, 90), (1, 10), (6, 20)))
    batch = make_batch(case)
    clean = batch.launch()
    batch.key_pool[batch.sequences[0].table] = float("nan")
    batch.value_pool[batch.sequences[0].table] = float("nan")
    torch.testing.assert_close(batch.launch()[1:], clean[1:])


@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), min_size=1, max_size=6),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    block_size=st.sampled_from([1, 4, 16]),
    window=st.none() | st.integers(1, 50),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_any_mix_of_chunks_and_decodes_equals_plain_attention(
    lengths: list[tuple[int, int]], kv_heads: int, group: int, block_size: int, window: int | None, seed: int
) -> None:
    contexts = tuple((new, new + before) for new, before in lengths)
    batch = make_batch(Case(contexts, kv_heads, group, 16, block_size, window), seed)
    torch.testing.assert_close(batch.launch(), batch.naive(), atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kv_write_puts_each_head_into_its_block(dtype: torch.dtype) -> None:
    blocks, offsets = torch.tensor([4, 0, 4, 2]), torch.tensor([3, 7, 0, 7])
    fused = torch.randn(4, 9, 16).to(dtype)
    new = fused[:, 5:8]  # a strided view, as the fused projection gives
    expected, written = torch.zeros(5, 3, 8, 16, dtype=dtype), torch.zeros(5, 3, 8, 16, dtype=dtype)
    kv_write_reference(expected, new, blocks, offsets)
    rows = (blocks[:, None] * 3 + torch.arange(3)) * 8 + offsets[:, None]
    kv_write(written, new, rows.flatten())
    assert torch.equal(written, expected)
    assert int(written.count_nonzero()) == 4 * 3 * 16
