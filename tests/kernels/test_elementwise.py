"""Norm, rotary and activation: launchers against the formulas, at most twice as wrong as the naive way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headway.kernels.gated_activation import Activation, gated_activation, gated_activation_reference
from headway.kernels.rms_norm import (
    add_rms_norm,
    add_rms_norm_reference,
    rms_norm,
    rms_norm_reference,
)
from headway.kernels.rotary import rotary, rotary_reference

DTYPES = [torch.float32, torch.bfloat16]


def assert_no_worse_than_twice(ours: Tensor, naive: Tensor, exact: Tensor) -> None:
    """Against the float64 truth; an epsilon of the largest value is allowed where the naive way is exact."""
    naive_error = float((naive.double() - exact).abs().max())
    slack = torch.finfo(ours.dtype).eps * float(exact.abs().max())
    assert float((ours.double() - exact).abs().max()) <= 2 * naive_error + slack


def naive_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 576), (7, 33), (129, 64), (3, 5, 16)])
def test_rms_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, weight = (torch.randn(shape) * 3).to(dtype), torch.randn(shape[-1]).to(dtype)
    exact = naive_norm(x.double(), weight.double(), 1e-5)
    naive = naive_norm(x, weight, 1e-5)
    assert_no_worse_than_twice(rms_norm(x, weight, 1e-5), naive, exact)
    assert_no_worse_than_twice(rms_norm_reference(x, weight, 1e-5), naive, exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_norms_the_sum_and_keeps_it(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, residual, weight = (torch.randn(9, 40).to(dtype) for _ in range(3))
    weight = weight[0]
    expected_norm, expected_sum = add_rms_norm_reference(x, residual, weight, 1e-6)
    normed, total = add_rms_norm(x, residual.clone(), weight, 1e-6)
    assert torch.equal(total, expected_sum)
    exact = naive_norm(expected_sum.double(), weight.double(), 1e-6)
    assert_no_worse_than_twice(normed, naive_norm(expected_sum, weight, 1e-6), exact)
    assert_no_worse_than_twice(expected_norm, naive_norm(expected_sum, weight, 1e-6), exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "heads", "width"), [(1, 12, 64), (5, 3, 8), (33, 1, 128)])
def test_rotary(dtype: torch.dtype, tokens: int, heads: int, width: int) -> None:
    torch.manual_seed(0)
    fused = torch.randn(tokens, heads + 2, width).to(dtype)
    x = fused[:, :heads]
    angles = torch.randn(tokens, 1, width // 2)
    cos, sin = angles.cos().repeat(1, 1, 2).to(dtype), angles.sin().repeat(1, 1, 2).to(dtype)
    signed_sin = torch.cat((-sin[..., : width // 2], sin[..., width // 2 :]), dim=-1)

    def turned(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        half = width // 2
        return values * cosine + torch.cat((-values[..., half:], values[..., :half]), dim=-1) * sine

    exact = turned(x.double(), cos.double(), sin.double())
    assert_no_worse_than_twice(rotary(x, cos, signed_sin), turned(x, cos, sin), exact)
    assert_no_worse_than_twice(rotary_reference(x, cos, signed_sin), turned(x, cos, sin), exact)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": lambda gate: gate * torch.sigmoid(gate),
    "gelu_tanh": lambda gate: (
        0.5 * gate * (1 + torch.tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)))
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("shape", [(1, 3072), (13, 34)])
def test_gated_activation(dtype: torch.dtype, activation: Activation, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    fused = (torch.randn(shape) * 4).to(dtype)
    act, half = ACTIVATIONS[activation], shape[1] // 2
    exact = act(fused[:, :half].double()) * fused[:, half:].double()
    naive = act(fused[:, :half]) * fused[:, half:]
    assert_no_worse_than_twice(gated_activation(fused, activation), naive, exact)
    assert_no_worse_than_twice(gated_activation_reference(fused, activation), naive, exact)
