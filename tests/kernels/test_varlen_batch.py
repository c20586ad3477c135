"""The GPU's plan of attention: every visible pair once, even pieces, counts that are the work's own."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.kernels import varlen_batch
from headway.kernels.attention_plan import AttentionShape, PagedSequence
from headway.kernels.host_arrays import int_rows
from headway.kernels.launch import A100, CHIPS, H100, Chip
from headway.kernels.varlen_batch import plan_varlen, varlen_attention_counts

CPU = torch.device("cpu")

lengths_of_sequences = st.lists(
    st.tuples(st.integers(1, 90), st.integers(0, 3000)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    min_size=1,
    max_size=6,
)


def shape(window: int | None = None, heads: int = 8, dtype: torch.dtype = torch.bfloat16) -> AttentionShape:
    return AttentionShape(heads, 2, 64, 16, window, dtype, CPU)


def sequences(lengths: list[tuple[int, int]]) -> list[PagedSequence]:
    starts = np.cumsum([0, *(new for new, _ in lengths)])
    return [
        PagedSequence(int(start), new, context, np.full(-(-context // 16), index))
        for index, ((new, context), start) in enumerate(zip(lengths, starts, strict=False))
    ]


@given(
    lengths_of_sequences, st.none() | st.integers(1, 700), st.sampled_from(CHIPS), st.booleans(),
    st.sampled_from([2, 6, 8, 14]),
)  # fmt: skip
def test_items_cover_what_each_token_sees_exactly_once(
    lengths: list[tuple[int, int]], window: int | None, chip: Chip, deterministic: bool, heads: int
) -> None:
    plan = plan_varlen(sequences(lengths), shape(window, heads), chip, deterministic=deterministic)
    tokens = plan.tile.rows // (heads // 2)
    covered: dict[int, list[tuple[int, int]]] = {}
    lines = int_rows(plan.tables)
    for line, start, count, first, key_start, key_end, _ in int_rows(plan.items):
        sequence = lines[line][0]
        assert 1 <= count <= tokens
        assert key_start < key_end
        assert key_start % plan.tile.keys == 0
        for offset in range(count):
            new, context = lengths[sequence]
            assert (
                first + offset == start + offset - int(sum(n for n, _ in lengths[:sequence])) + context - new
            )
            covered.setdefault(start + offset, []).append((key_start, key_end))
    positions = [context - new + offset for new, context in lengths for offset in range(new)]
    assert sorted(covered) == list(range(len(positions)))
    for token, position in enumerate(positions):
        spans = sorted(covered[token])
        assert all(before[1] == after[0] for before, after in pairwise(spans))
        seen_from = 0 if window is None else max(0, position - window + 1)
        assert spans[0][0] <= seen_from
        assert spans[-1][1] > position


@given(lengths_of_sequences, st.sampled_from(CHIPS), st.booleans())
def test_tiles_of_several_items_are_merged_and_no_slot_is_shared(
    lengths: list[tuple[int, int]], chip: Chip, deterministic: bool
) -> None:
    plan = plan_varlen(sequences(lengths), shape(), chip, deterministic=deterministic)
    parts: dict[tuple[int, int], list[int]] = {}
    for _, start, count, _, _, _, slot in int_rows(plan.items):
        parts.setdefault((start, count), []).append(slot)
    merged = {(start, count): (first, slots) for start, count, first, slots in int_rows(plan.merges)}
    used: list[int] = []
    for tile, slots in parts.items():
        if tile not in merged:
            assert slots == [-1]
        else:
            first, count = merged[tile]
            assert sorted(slots) == list(range(first, first + count))
            used += slots
    assert sorted(used) == list(range(plan.slots))


def test_a_lone_long_decode_fills_the_chip_and_many_are_not_cut() -> None:
    alone = plan_varlen(sequences([(1, 32_768)]), shape(), A100)
    assert len(alone.items) * 2 >= A100.processors
    many = plan_varlen(sequences([(1, 2048)] * 400), shape(), A100)
    assert many.slots == 0


def test_a_long_context_among_many_short_ones_is_cut_so_that_nobody_waits_for_it() -> None:
    plan = plan_varlen(sequences([(1, 60_000), *[(1, 300)] * 300]), shape(), H100)
    work = [end - start for _, _, _, _, start, end, _ in int_rows(plan.items)]
    assert work == sorted(work, reverse=True)
    assert max(work) <= 2 * sum(work) * 2 / (varlen_batch.PROGRAMS_PER_PROCESSOR * H100.processors)


def test_uploads_start_where_wide_loads_may() -> None:
    plan = plan_varlen(sequences([(1, 900), (3, 40), (1, 5)]), shape(), H100)
    for tensor in (plan.items, plan.merges, plan.tables):
        assert tensor.storage_offset() * tensor.element_size() % 16 == 0
    assert plan.tables.stride(0) % 16 == 0


def test_tables_take_the_lines_that_their_blocks_fill() -> None:
    plan = plan_varlen(sequences([(1, 900), (3, 40), (1, 257)]), shape(), H100)
    blocks = [-(-context // 16) for context in (900, 40, 257)]
    assert len(plan.tables) == sum(-(-count // 16) for count in blocks)


@pytest.mark.parametrize("window", [None, 1, 7, 30, 31, 100])
def test_counts_are_those_of_the_pairs_that_are_seen(window: int | None) -> None:
    lengths = [(1, 50), (20, 45), (9, 9)]
    pairs, keys = 0, 0
    for new, context in lengths:
        seen = [
            range(0 if window is None else max(0, position - window + 1), position + 1)
            for position in range(context - new, context)
        ]
        pairs += sum(map(len, seen))
        keys += len(set().union(*seen))
    counts = varlen_attention_counts(lengths, shape(window), torch.bfloat16)
    query_bytes = 30 * 8 * 64 * 2
    assert counts.flops == 4 * pairs * 8 * 64
    assert counts.bytes_read == query_bytes + keys * 2 * 2 * 64 * 2
    assert counts.bytes_written == query_bytes
