"""Attention's GPU kernels, interpreted: any mix of chunks and decodes, any cut of the keys, any cache."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.kernels.test_paged_attention import CPU, Batch, Case, make_batch
from torch import Tensor

from headway.kernels import varlen_batch
from headway.kernels.attention_plan import AttentionShape
from headway.kernels.launch import H100, MI300X, Chip
from headway.kernels.paged_attention import paged_attention_reference
from headway.kernels.rope_kv_write import quantize_rows_reference
from headway.kernels.split_merge import split_merge_launch, split_merge_reference
from headway.kernels.varlen_attention import PagedCache, varlen_attention
from headway.kernels.varlen_batch import plan_varlen

pytest.importorskip("triton")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys in tiles of 16 and items of 32, so that short contexts are cut often."""
    monkeypatch.setattr(varlen_batch, "DECODE_STAGE_BYTES", (1, 1))
    monkeypatch.setattr(varlen_batch, "PREFILL_STAGE_BYTES", (1, 1))
    monkeypatch.setattr(varlen_batch, "SPLIT_TOKENS", (32, 32))
    monkeypatch.setattr(varlen_batch, "FIXED_SPLIT", 32)


def shape_of(case: Case, dtype: torch.dtype) -> AttentionShape:
    heads = case.kv_heads * case.group
    return AttentionShape(heads, case.kv_heads, case.head_dim, case.block_size, case.window, dtype, CPU)


def launched(
    batch: Batch,
    *,
    cache: PagedCache | None = None,
    soft_cap: float | None = None,
    chip: Chip = H100,
    deterministic: bool = False,
) -> Tensor:
    case = batch.case
    plan = plan_varlen(batch.sequences, shape_of(case, batch.query.dtype), chip, deterministic=deterministic)
    return varlen_attention(
        batch.query,
        cache or PagedCache(batch.key_pool, batch.value_pool),
        plan,
        scale=case.scale,
        sliding_window=case.window,
        soft_cap=soft_cap,
    )


def plain(batch: Batch, dtype: torch.dtype, soft_cap: float | None = None) -> Tensor:
    """Attention over unpaged keys with everything computed in ``dtype``, but the softmax in float32."""
    case, parts = batch.case, list[Tensor]()
    for sequence, keys, values in zip(batch.sequences, batch.keys, batch.values, strict=True):
        rows = batch.query[sequence.query_start : sequence.query_start + sequence.query_len].to(dtype)
        wide_keys, wide_values = (each.to(dtype).repeat_interleave(case.group, 1) for each in (keys, values))
        others = torch.arange(sequence.context_len)
        positions = others[sequence.context_len - sequence.query_len :, None]
        visible = others <= positions
        if case.window is not None:
            visible &= others > positions - case.window
        scores = torch.einsum("thd,jhd->htj", rows, wide_keys) * case.scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        masked = scores.masked_fill(~visible, float("-inf"))
        weights = torch.softmax(masked.to(torch.promote_types(dtype, torch.float32)), dim=-1)
        parts.append(torch.einsum("htj,jhd->thd", weights.to(dtype), wide_values))
    return torch.cat(parts)


def assert_no_worse_than_twice(ours: Tensor, batch: Batch, soft_cap: float | None = None) -> None:
    """Against float64; where the naive way is nearly exact, two steps of the largest value are allowed."""
    exact = plain(batch, torch.float64, soft_cap)
    naive_error = float((plain(batch, ours.dtype, soft_cap).double() - exact).abs().max())
    slack = 2 * torch.finfo(ours.dtype).eps * float(exact.abs().max())
    assert float((ours.double() - exact).abs().max()) <= 2 * naive_error + slack


CASES = [
    Case(((1, 1),)),
    Case(((1, 225),)),
    Case(((1, 16), (1, 17), (1, 15))),
    Case(((37, 37),)),
    Case(((5, 70), (1, 33), (24, 64), (1, 2))),
    Case(((7, 20), (1, 21)), kv_heads=1, group=1, head_dim=8, block_size=1),
    Case(((3, 50), (1, 50)), kv_heads=2, group=7, head_dim=80, block_size=32),
    Case(((1, 100), (1, 9), (30, 90), (25, 25)), window=24),
    Case(((1, 100), (40, 40)), kv_heads=1, window=1, block_size=8),
    Case(((1, 30), (12, 30)), window=500),
    Case(((20, 200),), kv_heads=2, group=4, head_dim=16, window=70),
    Case(((18, 90), (1, 70)), kv_heads=1, group=80, head_dim=32),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_errs_at_most_twice_as_much_as_plain_attention(case: Case, dtype: torch.dtype) -> None:
    batch = make_batch(case).to(dtype)
    assert_no_worse_than_twice(launched(batch), batch)


@pytest.mark.usefixtures("short_splits")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("soft_cap", [None, 2.5])
@pytest.mark.parametrize("window", [None, 40])
def test_cut_keys_and_capped_scores_err_no_more(
    dtype: torch.dtype, soft_cap: float | None, window: int | None
) -> None:
    case = Case(((1, 150), (20, 75), (1, 9), (3, 40)), kv_heads=2, group=3, head_dim=24, window=window)
    batch = make_batch(case).to(dtype)
    assert plan_varlen(batch.sequences, shape_of(case, dtype), H100).slots > 0
    assert_no_worse_than_twice(launched(batch, soft_cap=soft_cap), batch, soft_cap)
    reference = paged_attention_reference(
        batch.query, batch.key_pool, batch.value_pool, batch.sequences,
        scale=case.scale, sliding_window=window, soft_cap=soft_cap,
    )  # fmt: skip
    assert_no_worse_than_twice(reference, batch, soft_cap)


@pytest.mark.usefixtures("short_splits")
@pytest.mark.parametrize("cache_dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_quantized_cache_adds_nothing_but_its_own_rounding(
    dtype: torch.dtype, cache_dtype: torch.dtype
) -> None:
    batch = make_batch(Case(((1, 70), (20, 40)), kv_heads=2, group=2, head_dim=16)).to(dtype)
    (keys, key_scales), (values, value_scales) = (
        quantize_rows_reference(pool.float(), cache_dtype) for pool in (batch.key_pool, batch.value_pool)
    )
    ours = launched(batch, cache=PagedCache(keys, values, key_scales, value_scales))
    wide_keys, wide_values = keys.float() * key_scales[..., None], values.float() * value_scales[..., None]
    unpaged = [
        [
            pool[torch.from_numpy(sequence.table)].transpose(1, 2).flatten(0, 1)[: sequence.context_len]
            for sequence in batch.sequences
        ]
        for pool in (wide_keys, wide_values)
    ]
    assert_no_worse_than_twice(ours, replace(batch, keys=unpaged[0], values=unpaged[1]))


def test_other_chips_tiles_give_the_same() -> None:
    batch = make_batch(Case(((1, 100), (30, 90)), head_dim=32)).to(torch.bfloat16)
    assert_no_worse_than_twice(launched(batch, chip=MI300X), batch)


@pytest.mark.usefixtures("short_splits")
@pytest.mark.parametrize("window", [None, 40])
def test_deterministic_results_do_not_depend_on_the_batch_or_the_chunks(window: int | None) -> None:
    whole = make_batch(Case(((70, 70),), kv_heads=1, group=2, head_dim=16, window=window)).to(torch.bfloat16)
    expected = launched(whole, deterministic=True)
    table = whole.sequences[0].table
    for cuts in ((0, 50, 70), (0, 1, 33, 70), (0, 68, 69, 70)):
        for start, end in pairwise(cuts):
            alone = replace(whole.sequences[0], query_len=end - start, context_len=end)
            # Beside the same sequence's last token, as if it were a stranger's.
            other = replace(alone, query_start=end - start, query_len=1, context_len=70, table=table)
            query = torch.cat((whole.query[start:end], whole.query[69:]))
            mixed = launched(replace(whole, query=query, sequences=[alone, other]), deterministic=True)
            assert torch.equal(mixed[:-1], expected[start:end])
            assert torch.equal(mixed[-1], expected[-1])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's of NaN, in the stranger's own answer
@pytest.mark.parametrize("lengths", [((1, 90), (1, 10), (6, 20)), ((30, 90), (1, 10), (6, 20))])
def test_what_others_or_nobody_has_written_reaches_no_answer(lengths: tuple[tuple[int, int], ...]) -> None:
    batch = make_batch(Case(lengths, head_dim=16))
    clean = launched(batch)
    first, *others = batch.sequences
    keep = torch.zeros(batch.key_pool.shape[:3], dtype=torch.bool)
    for sequence in others:
        for position in range(sequence.context_len):
            keep[int(sequence.table[position // 16]), :, position % 16] = True
    batch.key_pool[~keep] = float("nan")
    batch.value_pool[~keep] = float("nan")
    torch.testing.assert_close(launched(batch)[first.query_len :], clean[first.query_len :])


def test_merging_gives_the_formula_and_ignores_parts_that_saw_nothing() -> None:
    torch.manual_seed(0)
    merges = torch.tensor([[1, 2, 0, 3], [5, 1, 3, 2]], dtype=torch.int32)
    partial, statistics = torch.randn(5, 2, 16, 12), torch.rand(5, 2, 16, 2) + 0.5
    statistics[1, :, 2:4] = torch.tensor([float("-inf"), 0.0])
    partial[1, :, 2:4] = 0.0
    ours, expected = torch.zeros(7, 6, 12), torch.zeros(7, 6, 12)
    split_merge_launch(partial, statistics, merges, 2, ours).run()
    split_merge_reference(partial, statistics, merges, expected)
    torch.testing.assert_close(ours, expected)
    assert sorted(torch.nonzero(expected.abs().sum((1, 2))).flatten().tolist()) == [1, 2, 5]
