"""RMSNorm (Zhang and Sennrich, 2019, arXiv 1910.07467), alone and with the residual added first.

    rms_norm(x)[t, i]  = x[t, i] · weight[i] / sqrt(mean_j(x[t, j]²) + eps)
    residual'          = residual + x
    add_rms_norm       = rms_norm(residual'), residual'

x, residual: [tokens, width] (or [..., width]); weight: [width]. The mean and the product run in float32 and
are rounded once.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


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
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(RMSNorm of residual + x, residual + x). ``residual`` is overwritten with the sum."""
    residual.add_(x)
    return functional.rms_norm(residual, (residual.shape[-1],), weight, eps), residual
