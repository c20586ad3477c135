"""Tables of cosines and signed sines for the rotary embedding, with the stretches that Hugging Face defines.

Sources: ``modeling_rope_utils`` of transformers; LINEAR: position interpolation (arXiv 2306.15595); YARN:
arXiv 2309.00071; LLAMA3: the Llama 3.1 report (arXiv 2407.21783) and its reference code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.engine.errors import ModelError
from headway.engine.model_config import RopeConfig, RopeScaling


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """Rows are positions below the model's length limit: [positions, head_dim], in the model's dtype."""

    cos: Tensor
    signed_sin: Tensor
    """Sines, negated in the first half of each row (see ``kernels.rotary``)."""


def rotary_tables(
    rope: RopeConfig, head_dim: int, positions: int, dtype: torch.dtype, device: torch.device
) -> RotaryTables:
    """Tables for positions ``[0, positions)``; angles in float32, as Hugging Face computes them."""
    angles = (
        torch.arange(positions, dtype=torch.float32)[:, None] * inverse_frequencies(rope, head_dim)[None, :]
    )
    cos, sin = angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor
    return RotaryTables(
        cos=torch.cat((cos, cos), dim=-1).to(device=device, dtype=dtype),
        signed_sin=torch.cat((-sin, sin), dim=-1).to(device=device, dtype=dtype),
    )


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position for each of the head_dim / 2 pairs, float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.scaling is RopeScaling.NONE:
        return plain
    if rope.scaling is RopeScaling.LINEAR:
        return plain / rope.factor
    if rope.scaling is RopeScaling.LLAMA3:
        return _llama3(plain, rope)
    if rope.scaling is RopeScaling.YARN:
        return _yarn(rope, head_dim)
    if len(rope.divisors) != head_dim // 2:
        raise ModelError(
            f"rope_freqs holds {len(rope.divisors)} values where head_dim / 2 = {head_dim // 2} are needed"
        )
    return plain / torch.tensor(rope.divisors, dtype=torch.float32)


def _llama3(plain: Tensor, rope: RopeConfig) -> Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended."""
    wavelengths = 2 * math.pi / plain
    longest_kept = rope.original_max_position / rope.high_freq_factor
    shortest_stretched = rope.original_max_position / rope.low_freq_factor
    smooth = (rope.original_max_position / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - smooth) * plain / rope.factor + smooth * plain
    stretched = torch.where(wavelengths > shortest_stretched, plain / rope.factor, blended)
    return torch.where(wavelengths < longest_kept, plain, stretched)


def _yarn(rope: RopeConfig, head_dim: int) -> Tensor:
    """Pairs that turn over beta_fast times in the trained context are kept, under beta_slow stretched."""

    def pair_turning(times: float) -> float:
        return (head_dim * math.log(rope.original_max_position / (times * 2 * math.pi))) / (
            2 * math.log(rope.theta)
        )

    low = max(math.floor(pair_turning(rope.beta_fast)), 0)
    high = min(math.ceil(pair_turning(rope.beta_slow)), head_dim - 1)
    # 0.001 keeps the ramp finite where both ends meet, as in the source.
    width = (high - low) or 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    turns = rope.theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    return ramp / (rope.factor * turns) + (1 - ramp) / turns
