"""Gated activations of the Llama family's MLP (Shazeer, 2020, arXiv 2002.05202).

out[t, i] = act(gate_up[t, i]) · gate_up[t, i + n]       gate_up: [tokens, 2n], out: [tokens, n]
silu(x)      = x / (1 + e^−x)
gelu_tanh(x) = x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

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
    gate, up = gate_up.chunk(2, dim=-1)
    active = functional.silu(gate) if activation == "silu" else functional.gelu(gate, approximate="tanh")
    return active.mul_(up)
