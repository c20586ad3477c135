"""Products with weights of one byte on a GPU, and those that sum in one order whatever the batch.

    ScaledLinear   int8 or fp8 weights with a scale per output, activations as they are: decoding reads half
                   the bytes of bfloat16
    NarrowLinear   activations of one byte too, with a scale per token (W8A8): up to twice the rate as well
    FixedLinear    weights as they are, summed in one order (``--deterministic``)

Activations rounded to int8 per token raised the perplexity of SmolLM2-135M by 5 % (``kernels.weight_rows``):
W8A8 has to be asked for by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from headway.kernels.eight_bits import LARGEST, EightBits
from headway.kernels.fixed_matmul import fixed_matmul
from headway.kernels.launch import chip_of
from headway.kernels.matmul_tiles import row_class
from headway.kernels.quantize_rows import quantize_rows
from headway.kernels.scaled_matmul import MatmulTile, scaled_matmul

ScaledKind: TypeAlias = EightBits
STORED: dict[ScaledKind, torch.dtype] = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
"""On every chip: weights alone are widened by their bits."""

DEFAULT_TILES: Mapping[int, MatmulTile] = {}
"""By ``row_class``: none of them is other than by default."""

VENDOR_SIDE = 16
"""``torch._scaled_mm`` wants multiples of it, of inputs and of outputs."""


class FixedLinear:
    """x · weightᵀ + bias for x [rows, in] in the weight's dtype: every row alike in any batch."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, self._bias = weight.contiguous(), bias

    def __call__(self, x: Tensor) -> Tensor:
        """The product, in x's dtype; sums run in float32."""
        return fixed_matmul(x, self._weight, bias=self._bias)


class ScaledLinear:
    """x · weightᵀ + bias for x [rows, in]; weight [out, in] is rounded and given up to the layer."""

    __slots__ = ("_bias", "_in_fixed_order", "_scales", "_tiles", "_weight")

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        kind: ScaledKind,
        *,
        in_fixed_order: bool = False,
        tiles: Mapping[int, MatmulTile] = DEFAULT_TILES,
    ) -> None:
        self._weight, self._scales = rounded(weight, STORED[kind])
        self._bias, self._in_fixed_order, self._tiles = bias, in_fixed_order, tiles

    def __call__(self, x: Tensor) -> Tensor:
        """The product, in x's dtype; sums run in float32."""
        if self._in_fixed_order:
            return fixed_matmul(x, self._weight, self._scales, bias=self._bias, dtype=x.dtype)
        tile = self._tiles.get(row_class(len(x)))
        return scaled_matmul(x, self._weight, self._scales, bias=self._bias, dtype=x.dtype, tile=tile)


class NarrowLinear:
    """The same with x rounded as the weight is, token by token; ``number``: int8, or the chip's fp8."""

    __slots__ = ("_bias", "_in_fixed_order", "_number", "_scales", "_tiles", "_weight")

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        number: torch.dtype,
        *,
        in_fixed_order: bool = False,
        tiles: Mapping[int, MatmulTile] = DEFAULT_TILES,
    ) -> None:
        self._weight, self._scales = rounded(weight, number)
        self._number, self._bias = number, bias
        self._in_fixed_order, self._tiles = in_fixed_order, tiles

    def __call__(self, x: Tensor) -> Tensor:
        """The product, in x's dtype; sums run in int32 or float32."""
        narrow, row_scale = quantize_rows(x, self._number)
        if self._is_the_vendors(x):
            return torch._scaled_mm(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  # as everybody calls it
                narrow,
                self._weight.t(),
                scale_a=row_scale.unsqueeze(1),
                scale_b=self._scales.unsqueeze(0),
                bias=self._bias,
                out_dtype=x.dtype,
            )
        # Sums of integers are exact in any order.
        if self._in_fixed_order and self._number != torch.int8:
            return fixed_matmul(
                narrow, self._weight, self._scales, row_scale=row_scale, bias=self._bias, dtype=x.dtype
            )
        return scaled_matmul(
            narrow,
            self._weight,
            self._scales,
            row_scale=row_scale,
            bias=self._bias,
            dtype=x.dtype,
            tile=self._tiles.get(row_class(len(x))),
        )

    def _is_the_vendors(self, x: Tensor) -> bool:
        """fp8 by fp8 where their libraries take the shape; they choose the order of sums by the rows."""
        sides = (side % VENDOR_SIDE for side in self._weight.shape)
        is_taken = self._number != torch.int8 and x.dtype == torch.bfloat16 and not any(sides)
        # Scales of rows: PyTorch's libraries have them from H100 on, and not on every chip since.
        chip = chip_of(x.device)
        is_known = chip.backend == "hip" or (chip.is_cuda(90) and not chip.is_cuda(110))
        return is_taken and is_known and not self._in_fixed_order and len(x) > 0


def rounded(weight: Tensor, number: torch.dtype) -> tuple[Tensor, Tensor]:
    """(values of one byte [out, in], float32 scales [out]); their product is near the weight [out, in]."""
    wide, most = weight.float(), LARGEST[number]
    largest = wide.abs().amax(dim=1)
    scales = torch.where(largest > 0, largest / most, 1.0)
    scaled = wide / scales.unsqueeze(1)
    if number == torch.int8:
        scaled = scaled.round()
    return scaled.clamp(-most, most).to(number), scales
