"""Which products a GPU's model is made of: of which numbers, and in which order they are summed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, cast

import torch
from torch import Tensor

from headway.engine.errors import ModelError
from headway.engine.linear import Linear
from headway.engine.scaled_linear import DEFAULT_TILES, FixedLinear, NarrowLinear, ScaledLinear
from headway.engine.torch_weights import MakeProduct
from headway.kernels.eight_bits import EightBits, fp8_type
from headway.kernels.launch import Chip
from headway.kernels.scaled_matmul import MatmulTile

GpuQuantization: TypeAlias = Literal["none", "int8", "fp8", "int8-w8a8", "fp8-w8a8"]
"""Of the layers' weights, one scale per output; ``w8a8``: of activations too, one scale per token. The head
keeps its dtype."""


ProductTiles: TypeAlias = Mapping[tuple[int, int], Mapping[int, MatmulTile]]
"""By [outputs, inputs] of a weight and ``row_class``: tiles that are faster than the default."""
NO_TILES: ProductTiles = {}


def head_product(*, in_fixed_order: bool) -> MakeProduct:
    """The product that makes logits."""
    return FixedLinear if in_fixed_order else Linear


def layer_product(
    quantization: GpuQuantization,
    dtype: torch.dtype,
    chip: Chip,
    *,
    in_fixed_order: bool,
    tiles: ProductTiles = NO_TILES,
) -> MakeProduct:
    """The layers' products. ModelError: another chip or dtype is needed.

    ``tiles`` are for sums of any order: a fixed one has its own tile.
    """
    if quantization == "none":
        return head_product(in_fixed_order=in_fixed_order)
    if dtype == torch.float32:
        raise ModelError(f"quantization {quantization} multiplies with bfloat16: leave out --dtype float32")
    kind = cast(EightBits, quantization.removesuffix("-w8a8"))
    if kind == quantization:
        return lambda weight, bias: ScaledLinear(
            weight, bias, kind, in_fixed_order=in_fixed_order, tiles=_of(weight, tiles)
        )
    number = torch.int8 if kind == "int8" else fp8_type(chip)
    if number is None:
        raise ModelError(
            "quantization fp8-w8a8 needs a GPU that multiplies fp8 (L4, H100 or newer, MI300X), and this one "
            f"is of {chip.name}'s kind: take --quantization int8-w8a8, or fp8 for the weights alone"
        )

    def make(weight: Tensor, bias: Tensor | None) -> NarrowLinear:
        return NarrowLinear(weight, bias, number, in_fixed_order=in_fixed_order, tiles=_of(weight, tiles))

    return make


def _of(weight: Tensor, tiles: ProductTiles) -> Mapping[int, MatmulTile]:
    outputs, inputs = weight.shape
    return tiles.get((outputs, inputs), DEFAULT_TILES)
