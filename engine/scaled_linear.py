"""Products with weights of one byte on a GPU: int8 or fp8 with a scale per output, activations as they are.

Decoding reads half the bytes of bfloat16. Only weights are rounded: with activations rounded per token too
(``kernels.scaled_matmul``, W8A8) the perplexity of SmolLM2-135M rose by 5 % (``kernels.weight_rows``).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from headway.kernels.scaled_matmul import scaled_matmul

ScaledKind: TypeAlias = Literal["int8", "fp8"]
LARGEST: dict[ScaledKind, float] = {"int8": 127.0, "fp8": 448.0}


class ScaledLinear:
    """x · weightᵀ + bias for x [rows, in]; weight [out, in] is rounded and given up to the layer."""

    __slots__ = ("_bias", "_scales", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None, kind: ScaledKind) -> None:
        self._weight, self._scales = rounded(weight, kind)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """The product, in x's dtype; sums run in float32."""
        return scaled_matmul(x, self._weight, self._scales, bias=self._bias, dtype=x.dtype)


def rounded(weight: Tensor, kind: ScaledKind) -> tuple[Tensor, Tensor]:
    """(values of one byte [out, in], float32 scales [out]); their product is near the weight [out, in]."""
    wide = weight.float()
    largest = wide.abs().amax(dim=1)
    scales = torch.where(largest > 0, largest / LARGEST[kind], 1.0)
    scaled = wide / scales.unsqueeze(1)
    if kind == "int8":
        return scaled.round().clamp(-127, 127).to(torch.int8), scales
    return scaled.to(torch.float8_e4m3fn), scales
