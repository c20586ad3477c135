"""Tiles that a chip may be measured with: few, each right, and one alone where sums have a fixed order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from tests.kernels.test_paged_attention import Case, make_batch
from tests.kernels.test_scaled_matmul import launch
from tests.kernels.test_varlen_attention import assert_no_worse_than_twice, shape_of

from headway.kernels.attention_cases import GEMMA, LLAMA, SMOLLM, TINY
from headway.kernels.launch import CHIPS, DEFAULT_TILE, H100, Chip
from headway.kernels.matmul_cases import Kind
from headway.kernels.matmul_tiles import ROW_CLASSES, matmul_tiles, row_class
from headway.kernels.scaled_matmul import SPLIT_ROWS, matmul_tile, scaled_matmul_reference
from headway.kernels.tile_trials import CHUNK, DECODES, TileTrial, attention_trial, matmul_trial
from headway.kernels.varlen_attention import PagedCache, varlen_attention
from headway.kernels.varlen_batch import MIXED_TOKENS, attention_tile, plan_varlen

pytest.importorskip("triton")

CPU = torch.device("cpu")
KINDS: tuple[Kind, ...] = ("W8", "F8", "W8A8")
PRODUCTS = [
    (rows, name) for rows in ROW_CLASSES for name in matmul_tiles(rows, 2, H100) if name != DEFAULT_TILE
]
ATTENTION = [
    *((((1, 100), (1, 9), (1, 33)), name) for name in ("short", "pair", "deep")),
    *((((30, 90), (1, 25)), name) for name in ("short", "shallow", "tall")),
]


@pytest.mark.parametrize(("rows", "name"), PRODUCTS)
def test_products_by_every_tile_are_right_with_tails_on_every_side(rows: int, name: str) -> None:
    torch.manual_seed(rows)
    count, depth = min(rows, 133) - 3, 1100 if rows <= SPLIT_ROWS else 300
    x, weight = torch.randn(count, depth).bfloat16(), torch.randint(-99, 99, (130, depth), dtype=torch.int8)
    scale = torch.rand(130) * 0.01
    exact = scaled_matmul_reference(x, weight, scale, dtype=torch.float64)
    ours = launch(x, weight, scale, tile=matmul_tiles(rows, 2, H100)[name]).double()
    assert float((ours - exact).abs().max()) <= 2**-8 * float(exact.abs().max())


@pytest.mark.parametrize(("lengths", "name"), ATTENTION, ids=str)
def test_attention_by_every_tile_is_right(lengths: tuple[tuple[int, int], ...], name: str) -> None:
    batch = make_batch(Case(lengths, head_dim=32, window=40)).to(torch.bfloat16)
    shape = shape_of(batch.case, torch.bfloat16)
    plan = plan_varlen(batch.sequences, replace(shape, decode_tile=name, prefill_tile=name), H100)
    assert plan.tile != plan_varlen(batch.sequences, shape, H100).tile
    cache = PagedCache(batch.key_pool, batch.value_pool)
    ours = varlen_attention(batch.query, cache, plan, scale=batch.case.scale, sliding_window=40)
    assert_no_worse_than_twice(ours, batch)


def trials(chip: Chip) -> Iterator[TileTrial]:
    for kind in KINDS:
        for rows in ROW_CLASSES:
            for has_bias in (False, True):
                yield matmul_trial(kind, rows, 4096, 14_336, chip, has_bias=has_bias)
    for heads in (LLAMA, SMOLLM, GEMMA):
        for lengths in (DECODES, CHUNK):
            yield attention_trial(heads, lengths, None, chip)
            yield attention_trial(heads, lengths, "int8", chip)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_every_trial_has_few_tiles_with_today_s_first_and_a_name_of_its_own(chip: Chip) -> None:
    found = list(trials(chip))
    assert len({trial.name for trial in found}) == len(found)
    for trial in found:
        assert next(iter(trial.tiles)) == DEFAULT_TILE
        assert 1 <= len(trial.tiles) <= 4, trial.name
    assert sum(not trial.is_open for trial in found) <= 2, "AMD has nothing to choose from for wide heads"


def test_nothing_is_measured_where_there_is_nothing_to_choose_from() -> None:
    assert not attention_trial(replace(LLAMA, dtype=torch.float32), DECODES, None, H100).is_open
    assert not attention_trial(LLAMA, ((3, 1024),), None, H100).is_open, "drafts"
    assert not matmul_trial("F8A8", 16, 4096, 4096, H100, has_bias=False).is_open


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
@pytest.mark.parametrize("x_bytes", [1, 2])
def test_rows_of_one_class_have_the_same_tiles(chip: Chip, x_bytes: int) -> None:
    for rows in range(1, 600):
        assert matmul_tiles(rows, x_bytes, chip) == matmul_tiles(row_class(rows), x_bytes, chip)
        assert matmul_tiles(rows, x_bytes, chip)[DEFAULT_TILE] == matmul_tile(rows, x_bytes, chip)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_a_fixed_order_of_sums_knows_no_measured_tile(chip: Chip) -> None:
    shape = TINY.shape(CPU)
    tuned = replace(shape, decode_tile="pair", prefill_tile="short")
    for longest in (1, MIXED_TOKENS, 200):
        fixed = attention_tile(tuned, longest, chip, deterministic=True)
        assert fixed == attention_tile(shape, longest, chip, deterministic=True)
        assert attention_tile(tuned, longest, chip) != attention_tile(shape, longest, chip)
    assert attention_tile(tuned, 3, chip) == attention_tile(shape, 3, chip), "drafts: nobody measured them"
