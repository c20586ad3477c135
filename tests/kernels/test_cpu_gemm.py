"""CPU products: equal to their formulas, the same bits in any company, and exactly the file's own weights."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given
from hypothesis import strategies as st
from tests.native_kernels import native_library
from torch import Tensor
from torch.nn import functional

from headway.kernels.cpu_gemm import (
    PANEL,
    Epilogue,
    PackedWeight,
    product_part,
    product_reference,
    quantize_rows,
    rounded_reference,
)
from headway.kernels.weight_rows import (
    BLOCK_BYTES,
    GROUP,
    WeightKind,
    WeightRows,
    bf16_rows,
    dequantized,
    f32_rows,
    gguf_rows,
    int8_rows,
    q8_0_rows,
)

KINDS = list(WeightKind)
GGUF_TYPES = {
    WeightKind.Q4_0: GGMLQuantizationType.Q4_0,
    WeightKind.Q4_1: GGMLQuantizationType.Q4_1,
    WeightKind.Q8_0: GGMLQuantizationType.Q8_0,
}
SHAPES = [(32, 32), (96, 64), (70, 576), (1, 96), (960, 160)]
"""(outputs, inputs): whole panels, parts of one, a single output."""


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return native_library()


def random_rows(kind: WeightKind, outputs: int, inputs: int, seed: int = 0) -> WeightRows:
    """Blocks with every bit pattern of their quants, and scales of both signs as files have them."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator) * 0.05
    if kind is WeightKind.BF16:
        return bf16_rows(weight)
    if kind is WeightKind.F32:
        return f32_rows(weight)
    if kind in {WeightKind.INT8, WeightKind.INT8_MANY}:
        return int8_rows(weight, kind)
    blocks = torch.randint(
        0, 256, (outputs * inputs // GROUP, BLOCK_BYTES[kind]), dtype=torch.uint8, generator=generator
    )
    halves = 2 if kind is WeightKind.Q4_1 else 1
    scales = torch.randn(len(blocks), halves, generator=generator) * 0.01
    blocks[:, : 2 * halves] = scales.half().view(torch.uint8)
    return gguf_rows(blocks.view(outputs, -1), kind)


def activations(rows: int, inputs: int, seed: int = 1) -> Tensor:
    """Normal values with a few that are a hundred times as large, as language models have them."""
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed))
    x[:, :: max(1, inputs // 3)] *= 100
    return x


def product(
    library: ctypes.CDLL, weight: PackedWeight, x: Tensor, columns: list[int] | None = None
) -> Tensor:
    """All columns, in parts that end at ``columns``."""
    out = torch.full((len(x), weight.outputs), torch.nan)
    quantized, begin = quantize_rows(library, x, weight.kind), 0
    for end in [*(columns or []), weight.outputs]:
        product_part(library, weight, quantized, out, columns=(begin, end))
        begin = end
    return out


def assert_close_to(out: Tensor, exact: Tensor, naive: Tensor, largest: float | None = None) -> None:
    """At most twice as wrong as float32 in torch's order, give or take two roundings of the largest value."""
    error, naive_error = (float((values.double() - exact).abs().max()) for values in (out, naive))
    most = float(exact.abs().max()) if largest is None else largest
    assert error <= 2 * naive_error + 2 * torch.finfo(out.dtype).eps * most


def largest_sum(x: Tensor, dense: Tensor, kind: WeightKind) -> float:
    """Of the products' absolute values: what float32 sums have to carry."""
    return float((rounded_reference(x, kind).abs() @ dense.double().abs().T).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 6, 7, 13, 40])
def test_a_product_is_its_formula(
    library: ctypes.CDLL, kind: WeightKind, outputs: int, inputs: int, rows: int
) -> None:
    source, x = random_rows(kind, outputs, inputs), activations(rows, inputs)
    bias = torch.randn(outputs, generator=torch.Generator().manual_seed(2))
    weight, dense = PackedWeight(library, [source], bias=bias), dequantized(source)
    exact = product_reference(x, dense, kind, bias)
    naive = rounded_reference(x, kind).float() @ dense.T + bias
    assert_close_to(product(library, weight, x), exact, naive, largest_sum(x, dense, kind))


@pytest.mark.parametrize("kind", [WeightKind.BF16, WeightKind.INT8])
@pytest.mark.parametrize("inputs", [1, 30, 33, 100])
def test_inputs_need_not_fill_a_group(library: ctypes.CDLL, kind: WeightKind, inputs: int) -> None:
    source, x = random_rows(kind, 40, inputs), activations(5, inputs)
    dense = dequantized(source)
    exact = product_reference(x, dense, kind)
    naive = rounded_reference(x, kind).float() @ dense.T
    out = product(library, PackedWeight(library, [source]), x)
    assert_close_to(out, exact, naive, largest_sum(x, dense, kind))


@pytest.mark.parametrize("kind", KINDS)
@given(rows=st.integers(1, 50), start=st.integers(0, 49), ends=st.sets(st.integers(1, 6)))
def test_a_row_has_the_same_bits_in_any_batch_and_division(
    library: ctypes.CDLL, kind: WeightKind, rows: int, start: int, ends: set[int]
) -> None:
    weight, x = PackedWeight(library, [random_rows(kind, 200, 96)]), activations(50, 96)
    whole = product(library, weight, x)
    batch = x[min(start, 50 - rows) :][:rows].contiguous()
    part = product(library, weight, batch, [end * PANEL for end in sorted(ends)])
    assert torch.equal(part, whole[min(start, 50 - rows) :][:rows])


@pytest.mark.parametrize("kind", sorted(GGUF_TYPES))
@pytest.mark.parametrize("is_paired", [False, True])
def test_packed_blocks_are_the_files_weights_without_loss(
    library: ctypes.CDLL, kind: WeightKind, is_paired: bool
) -> None:
    parts = [random_rows(kind, 56, 128, seed) for seed in (3, 4)]
    weight = PackedWeight(library, parts, is_paired)
    blocks = torch.cat([part.values for part in parts])
    theirs = cast(
        "np.ndarray[tuple[int, int], np.dtype[np.float32]]", dequantize(blocks.numpy(), GGUF_TYPES[kind])
    )
    ours = torch.stack([weight.row(library, row) for row in range(weight.outputs)])
    assert np.array_equal(ours.numpy(), theirs)
    assert torch.equal(torch.cat([dequantized(part) for part in parts]), ours)


@pytest.mark.parametrize("kind", [WeightKind.BF16, WeightKind.INT8])
def test_rows_are_read_back_from_panels(library: ctypes.CDLL, kind: WeightKind) -> None:
    source = random_rows(kind, 45, 50)
    weight = PackedWeight(library, [source])
    assert torch.equal(torch.stack([weight.row(library, row) for row in range(45)]), dequantized(source))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", [Epilogue.SILU_MUL, Epilogue.GELU_TANH_MUL])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gate_and_up_leave_as_their_gated_product(
    library: ctypes.CDLL, kind: WeightKind, activation: Epilogue, dtype: torch.dtype
) -> None:
    parts, x = [random_rows(kind, 72, 96, seed) for seed in (5, 6)], activations(7, 96)
    bias = torch.randn(144, generator=torch.Generator().manual_seed(7))
    weight = PackedWeight(library, parts, is_paired=True, bias=bias)
    dense = torch.cat([dequantized(part) for part in parts])

    def gated(both: Tensor) -> Tensor:
        gate, up = both.chunk(2, dim=1)
        silu = activation is Epilogue.SILU_MUL
        return (functional.silu(gate) if silu else functional.gelu(gate, approximate="tanh")) * up

    out = torch.full((7, 72), torch.nan, dtype=dtype)
    product_part(library, weight, quantize_rows(library, x, kind), out, epilogue=activation)
    exact = gated(product_reference(x, dense, kind, bias))
    naive = gated(rounded_reference(x, kind).float() @ dense.T + bias).to(dtype)
    assert_close_to(out, exact, naive)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_residual_is_added_to(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    source, x = random_rows(WeightKind.Q4_1, 70, 64), activations(3, 64)
    weight, before = PackedWeight(library, [source]), torch.randn(3, 70).to(dtype)
    added = before.clone()
    product_part(library, weight, quantize_rows(library, x, weight.kind), added, epilogue=Epilogue.ADD)
    assert torch.equal(added, (before.float() + product(library, weight, x)).to(dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_written_beside_the_columns_asked_for(library: ctypes.CDLL, kind: WeightKind) -> None:
    weight, x = PackedWeight(library, [random_rows(kind, 70, 64)]), activations(9, 64)
    wide = torch.full((10, 80), 7.0)
    product_part(library, weight, quantize_rows(library, x, kind), wide[:9, 2:72], columns=(32, 70))
    assert torch.equal(wide[:9, 34:72], product(library, weight, x)[:, 32:])
    wide[:9, 34:72] = 7
    assert bool((wide == 7).all())


@pytest.mark.parametrize("kind", KINDS)
def test_activations_may_be_bfloat16_and_strided(library: ctypes.CDLL, kind: WeightKind) -> None:
    x = activations(6, 128).to(torch.bfloat16)[:, 32:]
    assert torch.equal(quantize_rows(library, x, kind), quantize_rows(library, x.float().contiguous(), kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 1e-40])
def test_rows_of_nothing_give_nothing(library: ctypes.CDLL, kind: WeightKind, value: float) -> None:
    weight = PackedWeight(library, [random_rows(kind, 32, 64)])
    assert float(product(library, weight, torch.full((2, 64), value)).abs().max()) < 1e-38


def test_the_largest_int8_sums_are_exact(library: ctypes.CDLL) -> None:
    inputs = 1 << 16
    source = WeightRows(
        WeightKind.INT8, inputs, torch.full((2, inputs), -127, dtype=torch.int8), torch.tensor([1.0, 2.0])
    )
    out = product(library, PackedWeight(library, [source]), torch.full((1, inputs), 127.0))
    assert out[0].tolist() == [-127.0 * 127 * inputs, -2 * 127.0 * 127 * inputs]


@pytest.mark.parametrize("rounding", [int8_rows, q8_0_rows])
def test_rounded_weights_are_within_half_a_step(rounding: Callable[[Tensor], WeightRows]) -> None:
    weight = torch.randn(40, 96, generator=torch.Generator().manual_seed(8))
    weight[3] = 0
    largest = weight.abs().amax(dim=1, keepdim=True)
    # Half a step, and what a scale in float16 may be off: 2⁻¹¹ of the value.
    assert bool(((dequantized(rounding(weight)) - weight).abs() <= (0.5 / 127 + 2**-11) * largest).all())


def test_parts_that_cannot_be_fused_are_refused(library: ctypes.CDLL) -> None:
    four, eight = random_rows(WeightKind.Q4_1, 32, 64), random_rows(WeightKind.Q8_0, 32, 64)
    with pytest.raises(ValueError, match="one kind and width"):
        PackedWeight(library, [four, eight])
    with pytest.raises(ValueError, match="one kind and width"):
        PackedWeight(library, [four, random_rows(WeightKind.Q4_1, 32, 96)])
    with pytest.raises(ValueError, match="gate and an up"):
        PackedWeight(library, [four, random_rows(WeightKind.Q4_1, 64, 64)], is_paired=True)
    with pytest.raises(ValueError, match="65,536"):
        PackedWeight(library, [WeightRows(WeightKind.INT8, 70_000, torch.zeros(1, 70_000, dtype=torch.int8))])
    with pytest.raises(ValueError, match="blocks of 32"):
        q8_0_rows(torch.zeros(2, 40))
