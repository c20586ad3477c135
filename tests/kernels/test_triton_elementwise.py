"""Norm and activation on a GPU, interpreted: at most twice as wrong as the naive way, on odd shapes."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.test_elementwise import ACTIVATIONS, assert_no_worse_than_twice, naive_norm

from headway.kernels.gated_activation import Activation, gated_activation_launch
from headway.kernels.launch import CHIPS, H100, Chip
from headway.kernels.rms_norm import add_rms_norm_reference, rms_norm_launch

pytest.importorskip("triton")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 576), (7, 33), (5, 1), (3, 4100)])
def test_rms_norm(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    x, weight = (torch.randn(shape) * 3).to(dtype), torch.randn(shape[-1]).to(dtype)
    out = torch.empty_like(x)
    rms_norm_launch(x, weight, 1e-5, out, chip=H100).run()
    exact = naive_norm(x.double(), weight.double(), 1e-5)
    assert_no_worse_than_twice(out, naive_norm(x, weight, 1e-5), exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_of_some_heads_of_a_fused_projection(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    heads, weight = torch.randn(5, 9, 24).to(dtype)[:, 2:6], torch.randn(24).to(dtype)
    out = torch.empty(heads.shape, dtype=dtype)
    rms_norm_launch(heads, weight, 1e-6, out, chip=H100).run()
    exact = naive_norm(heads.double(), weight.double(), 1e-6)
    assert_no_worse_than_twice(out, naive_norm(heads, weight, 1e-6), exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_keeps_the_sum_in_place_of_the_residual(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, residual, weights = (torch.randn(9, 40).to(dtype) for _ in range(3))
    _, expected = add_rms_norm_reference(x, residual, weights[0], 1e-6)
    out = torch.empty_like(x)
    rms_norm_launch(x, weights[0], 1e-6, out, chip=H100, residual=residual, total=residual).run()
    assert torch.equal(residual, expected)
    exact = naive_norm(expected.double(), weights[0].double(), 1e-6)
    assert_no_worse_than_twice(out, naive_norm(expected, weights[0], 1e-6), exact)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")  # e^x = ∞ is meant
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("shape", [(1, 3072), (13, 34), (2, 4200)])
def test_gated_activation(dtype: torch.dtype, activation: Activation, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    fused, half = (torch.randn(shape) * 4).to(dtype), shape[1] // 2
    fused[0, 0] = -200.0
    act, out = ACTIVATIONS[activation], torch.empty((shape[0], half), dtype=dtype)
    gated_activation_launch(fused, activation, out, chip=H100).run()
    exact = act(fused[:, :half].double()) * fused[:, half:].double()
    assert_no_worse_than_twice(out, act(fused[:, :half]) * fused[:, half:], exact)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
@pytest.mark.parametrize("width", [1, 64, 576, 4096, 14_336])
def test_no_program_asks_for_more_than_a_block_of_threads(chip: Chip, width: int) -> None:
    x = torch.empty((3, 2 * width), device="meta")
    launches = [
        rms_norm_launch(x, x[0], 1e-5, x, chip=chip),
        gated_activation_launch(x, "silu", x[:, :width], chip=chip),
    ]
    for launch in launches:
        assert 1 <= launch.num_warps * chip.warp_size <= 1024
        assert launch.num_warps & (launch.num_warps - 1) == 0
