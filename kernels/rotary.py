"""Rotary position embedding over half-split heads (Su et al., 2021, arXiv 2104.09864; Hugging Face's layout).

    y[t, h, i]        = x[t, h, i]        · cos[t, i] − x[t, h, i + d/2] · sin[t, i]      for i < d/2
    y[t, h, i + d/2]  = x[t, h, i + d/2]  · cos[t, i] + x[t, h, i]       · sin[t, i]

x, y: [tokens, heads, d]. The tables repeat the d/2 angles over both halves and carry the minus sign in sin's
first half:

    y = x · cos + swap_halves(x) · signed_sin         cos, signed_sin: [tokens, 1, d], x's dtype
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_reference(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """The formula by halves, in float32, rounded to x's dtype at the end."""
    half = x.shape[-1] // 2
    first, second = x[..., :half].float(), x[..., half:].float()
    cosine, sine = cos[..., :half].float(), signed_sin[..., half:].float()
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)


def rotary(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotated copy of x; x may be a strided view, so q and k heads of a fused projection go in one call."""
    swapped = torch.roll(x, x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * cos, swapped, signed_sin)
