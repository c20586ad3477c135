"""Products in one order: right, and a row has the same bits alone and among any number of others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headway.kernels import fixed_matmul as module
from headway.kernels.fixed_matmul import fixed_matmul
from headway.kernels.launch import H100
from headway.kernels.row_log_probabilities import row_log_probabilities
from headway.kernels.sampling import log_probabilities
from headway.kernels.scaled_matmul import SPLIT_ROWS, scaled_matmul_reference

pytest.importorskip("triton")

COLUMNS, DEPTH = 70, 1040
"""Tails on both sides, and two parts of K."""


def operands(form: str, rows: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """(x, weight, weight's scales, rows' scales)"""
    generator = torch.Generator().manual_seed(3)
    plain = torch.float32 if form == "float32" else torch.bfloat16
    x, weight = (torch.randn(n, DEPTH, generator=generator).to(plain) for n in (rows, COLUMNS))
    scale, row_scale = (torch.rand(n, generator=generator) for n in (COLUMNS, rows))
    if form == "int8 weights":
        return x, (weight * 30).to(torch.int8), scale, None
    if form == "fp8 by fp8":
        return x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn), scale, row_scale
    return x, weight, None, None


@pytest.mark.parametrize("form", ["bfloat16", "float32", "int8 weights", "fp8 by fp8"])
def test_a_row_is_right_and_the_same_bits_in_any_company(form: str) -> None:
    rows = SPLIT_ROWS + 3
    x, weight, scale, row_scale = operands(form, rows)
    out = torch.float32 if form == "float32" else torch.bfloat16
    bias = torch.linspace(-1, 1, COLUMNS).to(out)

    def multiply(first: int, last: int) -> Tensor:
        own = None if row_scale is None else row_scale[first:last]
        return fixed_matmul(x[first:last], weight, scale, row_scale=own, bias=bias, dtype=out)

    assert module.fixed_count(weight, module.fixed_tile(weight, H100), H100) == 2
    together = multiply(0, rows)  # one program adds both parts
    ones = torch.ones(COLUMNS) if scale is None else scale
    exact = scaled_matmul_reference(x, weight, ones, row_scale=row_scale, bias=bias, dtype=torch.float64)
    tolerance = 1e-5 if form == "float32" else 2**-8
    assert float((together.double() - exact).abs().max()) <= tolerance * float(exact.abs().max())
    for first, last in ((0, 1), (5, 22), (rows - 1, rows)):  # a second launch adds them
        assert torch.equal(multiply(first, last), together[first:last])


def test_log_probabilities_are_torchs_and_equal_ones_come_by_their_ids() -> None:
    logits = torch.randn(5, 4099, generator=torch.Generator().manual_seed(1)).bfloat16().float() * 4
    logits[2, 7:19] = logits[2].max() + 1
    chosen = torch.tensor([0, 4098, 11, 5, 77])
    picked, values, ids = row_log_probabilities(logits, chosen, 8, chip=H100)
    expected, expected_values, _ = log_probabilities(logits, chosen, 8)
    torch.testing.assert_close(picked, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(values, expected_values, atol=1e-5, rtol=0)
    assert ids[2].tolist() == list(range(7, 15))
    assert torch.equal(logits.gather(1, ids), logits.topk(8).values)
    for row in (0, 2):
        alone = row_log_probabilities(logits[row : row + 1], chosen[row : row + 1], 8, chip=H100)
        for one, all_rows in zip(alone, (picked, values, ids), strict=True):
            assert torch.equal(one[0], all_rows[row])
