"""RMSNorm (Zhang and Sennrich, 2019, arXiv 1910.07467), alone and with the residual added first.

    rms_norm(x)[t, i]  = x[t, i] · weight[i] / sqrt(mean_j(x[t, j]²) + eps)
    residual'          = residual + x
    add_rms_norm       = rms_norm(residual'), residual'

x, residual: [tokens, width] (or [..., width]); weight: [width]. The mean and the product run in float32 and
are rounded once. On a GPU each row is one program that reads it once; what it moves is all it costs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from headway.kernels.launch import Chip, Counts, Launch, chip_of, next_power_of_two
from headway.kernels.triton_language import Operand, constexpr, jit, tl


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The formula, in float32, rounded to x's dtype at the end."""
    wide = x.float()
    inverse_rms = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * inverse_rms * weight.float()).to(x.dtype)


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The formula; the sum is rounded to x's dtype before it is normed, since the next layer adds to that."""
    total = residual + x
    return rms_norm_reference(total, weight, eps), total


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension, same shape and dtype as x."""
    if x.device.type == "cuda":
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        rms_norm_launch(x, weight, eps, out, chip=chip_of(x.device)).run()
        return out
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(RMSNorm of residual + x, residual + x). ``residual`` is overwritten with the sum."""
    if x.device.type == "cuda":
        out = torch.empty_like(residual)
        rms_norm_launch(x, weight, eps, out, residual=residual, total=residual, chip=chip_of(x.device)).run()
        return out, residual
    residual.add_(x)
    return functional.rms_norm(residual, (residual.shape[-1],), weight, eps), residual


@jit
def _rms_norm_kernel(
    x: Operand,
    residual: Operand,
    total: Operand,
    weight: Operand,
    out: Operand,
    outer_stride: Operand,
    inner_stride: Operand,
    inner_count: Operand,
    width: Operand,
    eps: Operand,
    ADD: constexpr,
    BLOCK: constexpr,
) -> None:
    row = tl.program_id(0)
    # Rows of a view of some heads of a fused projection: [outer, inner, width], inner rows beside each other.
    source = row // inner_count * outer_stride.to(tl.int64) + row % inner_count * inner_stride
    target = row.to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(x + source + columns, mask=inside, other=0.0)
    if ADD:
        # The two terms are exact in float32; the sum is rounded once, to what the next layer reads.
        values = values.to(tl.float32) + tl.load(residual + target + columns, mask=inside, other=0.0)
        values = values.to(out.dtype.element_ty)
        tl.store(total + target + columns, values, mask=inside)
    wide = values.to(tl.float32)
    inverse_rms = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / width + eps)
    scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + target + columns, (wide * inverse_rms * scale).to(out.dtype.element_ty), mask=inside)


VALUES_PER_LANE = 8
"""Values that each lane of a warp holds: 16 bytes of bf16, one wide load."""


def rms_norm_launch(
    x: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor,
    *,
    chip: Chip,
    residual: Tensor | None = None,
    total: Tensor | None = None,
) -> Launch:
    """x: [tokens, width] or a view [tokens, heads, width] with dense rows; the others are contiguous.

    With ``residual``, their sum goes to ``total``, which may be ``residual``.
    """
    width = x.shape[-1]
    outer = x.stride(0) if x.dim() > 1 else 0
    inner_stride, inner_count = (x.stride(1), x.shape[1]) if x.dim() == 3 else (0, 1)
    block = next_power_of_two(width)
    return Launch(
        kernel=_rms_norm_kernel,
        grid=(x.numel() // width,),
        arguments={
            "x": x,
            "residual": residual,
            "total": total,
            "weight": weight,
            "out": out,
            "outer_stride": outer,
            "inner_stride": inner_stride,
            "inner_count": inner_count,
            "width": width,
            "eps": eps,
        },
        constants={"ADD": residual is not None, "BLOCK": block},
        num_warps=max(1, min(16, block // (VALUES_PER_LANE * chip.warp_size))),
    )


def rms_norm_counts(rows: int, width: int, dtype: torch.dtype, *, add: bool = False) -> Counts:
    """Each row read (twice with a residual) and written (likewise) once; the weight once."""
    row_bytes = rows * width * dtype.itemsize
    passes = 2 if add else 1
    return Counts(passes * row_bytes + width * dtype.itemsize, passes * row_bytes, (3 + add) * rows * width)
