"""GPU kernels that work row by row, interpreted: a row has the same bits alone and among any others.

Attention's share of that promise is in ``test_varlen_attention`` (``deterministic``), the CPU's in
``tests/engine/test_native_model``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch
from tests.kernels import test_fused_sampling as sampling
from tests.kernels import test_rope_kv_write as rope
from torch import Tensor

from headway.kernels.fused_sampling import RowSampling
from headway.kernels.gated_activation import gated_activation_launch
from headway.kernels.launch import H100, MI300X, Chip
from headway.kernels.quantize_rows import quantize_rows_launch
from headway.kernels.rms_norm import rms_norm_launch
from headway.kernels.rope_kv_write import rope_kv_write

pytest.importorskip("triton")

ROWS = 37
"""More than any kernel's tile of tokens that a small test can have, and no multiple of one."""
CHIPS = pytest.mark.parametrize("chip", [H100, MI300X], ids=lambda chip: chip.name)

RowWise = Callable[[Tensor, Chip], tuple[Tensor, ...]]


def normed(x: Tensor, chip: Chip) -> tuple[Tensor, ...]:
    weight = torch.linspace(-1, 2, x.shape[1]).to(x.dtype)
    residual, total, out = x.flip(1).contiguous(), torch.empty_like(x), torch.empty_like(x)
    rms_norm_launch(x, weight, 1e-6, out, chip=chip, residual=residual, total=total).run()
    return out, total


def gated(x: Tensor, chip: Chip) -> tuple[Tensor, ...]:
    out = torch.empty((x.shape[0], x.shape[1] // 2), dtype=x.dtype)
    gated_activation_launch(x, "silu", out, chip=chip).run()
    return (out,)


def quantized(x: Tensor, chip: Chip) -> tuple[Tensor, ...]:
    out, scales = torch.empty(x.shape, dtype=torch.int8), torch.empty(x.shape[0])
    quantize_rows_launch(x, out, scales, chip=chip).run()
    return out, scales


@CHIPS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("compute", [normed, gated, quantized])
def test_norms_activations_and_rounding(compute: RowWise, dtype: torch.dtype, chip: Chip) -> None:
    x = (torch.randn(ROWS, 578, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    together = compute(x, chip)
    for start, end in ((0, 1), (5, 6), (9, 26), (36, 37)):
        for part, whole in zip(compute(x[start:end].contiguous(), chip), together, strict=True):
            assert torch.equal(part, whole[start:end])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("normed_heads", [False, True])
def test_rotation_and_kv_write(dtype: torch.dtype, normed_heads: bool) -> None:
    given = rope.inputs(dtype, 24, tokens=20, normed=normed_heads)
    cache = given.cache(dtype)
    queries = rope_kv_write(given.qkv, given.rotary, cache, given.slots, given.norms)
    apart = given.cache(dtype)
    for start, end in ((0, 1), (1, 2), (2, 11), (11, 20)):
        some = replace(
            given,
            qkv=given.qkv[start:end],
            rotary=replace(given.rotary, positions=given.rotary.positions[start:end]),
            slots=given.slots[start:end],
        )
        part = rope_kv_write(some.qkv, some.rotary, apart, some.slots, some.norms)
        assert torch.equal(part, queries[start:end])
    assert torch.equal(apart.keys, cache.keys)
    assert torch.equal(apart.values, cache.values)


def test_sampling() -> None:
    count = len(sampling.FILTERS)
    logits = sampling.random_logits(count, 700, seed=1, spread=3.0)
    rows = sampling.make_rows(sampling.FILTERS)
    together = sampling.launch(logits.clone(), rows)
    for i in range(count):
        own = _row(rows, i)
        for part, whole in zip(sampling.launch(logits[i : i + 1].clone(), own), together, strict=True):
            assert torch.equal(part, whole[i : i + 1])


def _row(rows: RowSampling, index: int) -> RowSampling:
    own = {field.name: getattr(rows, field.name) for field in fields(rows)}
    return replace(rows, **{name: one[index : index + 1] for name, one in own.items() if one is not None})
