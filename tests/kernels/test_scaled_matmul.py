"""Products with one-byte weights, in the interpreter: at most twice as wrong as the naive way, int8 exact."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headway.kernels.launch import A100, H100, MI300X, Chip
from headway.kernels.quantize_rows import quantize_rows_launch, quantize_rows_reference
from headway.kernels.row_gather import row_gather_launch, row_gather_reference
from headway.kernels.scaled_matmul import (
    MatmulTile,
    matmul_tile,
    parts_for,
    scaled_matmul_launches,
    scaled_matmul_reference,
    split_count,
)

pytest.importorskip("triton")

SHAPES = [(1, 33, 17), (3, 130, 1200), (17, 64, 96), (64, 70, 2048), (66, 65, 136), (130, 129, 200)]
"""(rows, columns, depth): tails on every side, K split and not, each tile of the table."""


def launch(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    row_scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.bfloat16,
    chip: Chip = H100,
    tile: MatmulTile | None = None,
) -> Tensor:
    out = torch.full((x.shape[0], weight.shape[0]), torch.nan, dtype=dtype)
    tile = tile or matmul_tile(len(x), x.element_size(), chip)
    parts = parts_for(x, weight, chip, tile)
    for each in scaled_matmul_launches(
        x, weight, weight_scale, row_scale, bias, out, parts, tile=tile, chip=chip
    ):
        each.run()
    return out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weight_only_products(shape: tuple[int, int, int], kind: torch.dtype, dtype: torch.dtype) -> None:
    rows, columns, depth = shape
    torch.manual_seed(depth)
    x = torch.randn(rows, depth).to(dtype)
    weight = (torch.randn(columns, depth) * 30).clamp(-127, 127).to(kind)
    scale, bias = torch.rand(columns) * 0.01, torch.randn(columns).to(dtype)
    exact = scaled_matmul_reference(x, weight, scale, bias=bias, dtype=torch.float64)
    ours = launch(x, weight, scale, bias=bias, dtype=dtype)
    naive = x @ (weight.float() * scale.unsqueeze(1)).to(dtype).T + bias
    naive_error = float((naive.double() - exact).abs().max())
    slack = torch.finfo(dtype).eps * float(exact.abs().max())
    assert float((ours.double() - exact).abs().max()) <= 2 * naive_error + slack


@pytest.mark.parametrize("shape", SHAPES)
def test_int8_by_int8_is_exact_up_to_the_scales(shape: tuple[int, int, int]) -> None:
    rows, columns, depth = shape
    torch.manual_seed(rows)
    x, weight = (torch.randint(-127, 128, (n, depth), dtype=torch.int8) for n in (rows, columns))
    row_scale, scale = torch.rand(rows), torch.ones(columns)
    ours = launch(x, weight, scale, row_scale, dtype=torch.float32)
    sums = (x.long() @ weight.long().T).float()
    assert torch.equal(ours, sums * row_scale.unsqueeze(1))


def test_every_fp8_value_is_widened_exactly() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    numbers = codes[(codes & 0x7F) != 0x7F]  # no NaN
    weight = torch.zeros(len(numbers), 16, dtype=torch.uint8)
    weight[:, 3] = numbers
    x = torch.zeros(1, 16, dtype=torch.bfloat16)
    x[0, 3] = 1.0
    fp8 = weight.view(torch.float8_e4m3fn)
    out = launch(x, fp8, torch.ones(len(numbers)), dtype=torch.float32)
    assert torch.equal(out[0], fp8[:, 3].float())


@pytest.mark.parametrize("chip", [A100, H100, MI300X])
def test_splits_depend_on_weight_and_chip_alone_and_leave_no_depth_out(chip: Chip) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 3000).bfloat16(), torch.randint(-9, 9, (40, 3000), dtype=torch.int8)
    assert split_count(40, 3000, matmul_tile(2, 2, chip), chip) > 1
    together = launch(x, weight, torch.ones(40), chip=chip)
    assert torch.equal(launch(x[:1], weight, torch.ones(40), chip=chip), together[:1])
    exact = scaled_matmul_reference(x, weight, torch.ones(40), dtype=torch.float64)
    torch.testing.assert_close(together.double(), exact, rtol=2**-8, atol=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 70, 576])
def test_rows_are_quantised_as_the_formula_says(dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(width)
    wide = (torch.randn(6, width + 3) * 5).to(dtype)
    wide[2] = 0
    x = wide[:, :width]
    out, scale = torch.empty(6, width, dtype=torch.int8), torch.empty(6)
    quantize_rows_launch(x, out, scale, chip=H100).run()
    expected, expected_scale = quantize_rows_reference(x)
    assert torch.equal(out, expected)
    assert torch.equal(scale, expected_scale)
    assert int(out.abs().max()) == 127


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_gathered_by_their_own_or_the_latest_ids(dtype: torch.dtype) -> None:
    table = torch.randn(20, 2500).to(dtype)[:, :2100]
    ids, latest = torch.tensor([3, -2, 0, -1, 19]), torch.tensor([7, 11])
    out = torch.empty(5, 2100, dtype=dtype)
    row_gather_launch(table, ids, latest, out, chip=H100).run()
    assert torch.equal(out, table[torch.tensor([3, 11, 0, 7, 19])])
    assert torch.equal(row_gather_reference(table, ids, latest), out)
