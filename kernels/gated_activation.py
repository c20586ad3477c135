"""Gated activations of the Llama family's MLP (Shazeer, 2020, arXiv 2002.05202).

out[t, i] = act(gate_up[t, i]) · gate_up[t, i + n]       gate_up: [tokens, 2n], out: [tokens, n]
silu(x)      = x / (1 + e^−x)
gelu_tanh(x) = x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))
             = x / (1 + e^−2√(2/π)(x + 0.044715 x³))
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from headway.kernels.launch import Chip, Counts, Launch, chip_of, next_power_of_two
from headway.kernels.triton_language import Operand, constexpr, jit, tl

Activation: TypeAlias = Literal["silu", "gelu_tanh"]


def gated_activation_reference(gate_up: Tensor, activation: Activation) -> Tensor:
    """The formula, in float32, rounded to the input's dtype at the end."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    if activation == "silu":
        active = gate / (1 + torch.exp(-gate))
    else:
        active = gate / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    return (active * up).to(gate_up.dtype)


def gated_activation(gate_up: Tensor, activation: Activation) -> Tensor:
    """act(gate) · up for the fused projection [gate | up]."""
    if gate_up.device.type == "cuda":
        out = gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
        gated_activation_launch(gate_up, activation, out, chip=chip_of(gate_up.device)).run()
        return out
    gate, up = gate_up.chunk(2, dim=-1)
    active = functional.silu(gate) if activation == "silu" else functional.gelu(gate, approximate="tanh")
    return active.mul_(up)


@jit
def _gated_activation_kernel(
    gate_up: Operand, out: Operand, width: Operand, row_stride: Operand, SILU: constexpr, BLOCK: constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    source = gate_up + row * row_stride + columns
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + width, mask=inside, other=0.0).to(tl.float32)
    # 1.5957691… = 2·√(2/π). e^x may overflow to infinity, whose reciprocal is the right limit, 0.
    exponent = gate if SILU else 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    active = gate / (1.0 + tl.exp(-exponent))
    tl.store(out + row * width + columns, (active * up).to(out.dtype.element_ty), mask=inside)


MOST_COLUMNS = 2048
"""Columns of one program: 4 KB of bf16 each of gate and up keep a multiprocessor's loads in flight."""

VALUES_PER_LANE = 8
"""16 bytes of bf16: one wide load."""


def gated_activation_launch(gate_up: Tensor, activation: Activation, out: Tensor, *, chip: Chip) -> Launch:
    """gate_up: [tokens, 2n] with dense rows; out: [tokens, n], contiguous."""
    rows, width = out.shape
    block = min(MOST_COLUMNS, next_power_of_two(width))
    return Launch(
        kernel=_gated_activation_kernel,
        grid=(rows, -(-width // block)),
        arguments={"gate_up": gate_up, "out": out, "width": width, "row_stride": gate_up.stride(0)},
        constants={"SILU": activation == "silu", "BLOCK": block},
        num_warps=max(1, min(8, block // (VALUES_PER_LANE * chip.warp_size))),
    )


def gated_activation_counts(rows: int, width: int, dtype: torch.dtype) -> Counts:
    """Gate and up read, their product written; n = ``width``."""
    return Counts(2 * rows * width * dtype.itemsize, rows * width * dtype.itemsize, 6 * rows * width)
