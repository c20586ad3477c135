"""Matrix products with a weight that never changes: on a CPU, reordered once into oneDNN's blocked layout.

Measured on two cores (GFLOP/s, bf16, 576 × 1536; plain → reordered): 46 → 84 at one row, 303 → 451 at 8, 613
→ 768 at 32; in float32 an MLP takes half the time. Where this torch lacks the operators, the plain product
gives the same values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from torch.nn import functional

LAYOUT_ROWS = 32
"""Batch size that oneDNN's layout is chosen for; measured good from 1 to 512 rows."""


Product: TypeAlias = Callable[[Tensor], Tensor]
"""From x [rows, in] to [rows, out]."""


class Linear:
    """x · weightᵀ + bias for x [rows, in]; weight [out, in] is given up to the layer."""

    __slots__ = ("_bias", "_product", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        operators = _reordered_operators() if weight.device.type == "cpu" else None
        self._bias = bias
        self._weight = weight if operators is None else operators[0](weight.contiguous(), LAYOUT_ROWS)
        self._product: Callable[..., Tensor] | None = None if operators is None else operators[1]

    def __call__(self, x: Tensor) -> Tensor:
        """The product, in x's dtype; sums run in float32."""
        if self._product is None:
            return functional.linear(x, self._weight, self._bias)
        return self._product(x, self._weight, self._bias, "none", [], "")


def _reordered_operators() -> tuple[Callable[[Tensor, int], Tensor], Callable[..., Tensor]] | None:
    """(reorder, product), or None where this build of torch has no oneDNN."""
    if not cast(Any, torch.backends.mkldnn).is_available():
        return None
    # torch.ops is typed as returning Any-like packets; these two are what torch.compile emits for frozen
    # weights.
    mkldnn = cast(Any, torch.ops.mkldnn)
    try:
        return mkldnn._reorder_linear_weight.default, mkldnn._linear_pointwise.default
    except AttributeError:
        return None
