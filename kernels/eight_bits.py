"""Numbers of eight bits with a scale beside them: which there are, and which of them a chip computes with."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from headway.kernels.launch import Chip

EightBits: TypeAlias = Literal["int8", "fp8"]

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 240.0}
"""What a row's largest number is scaled to."""


def fp8_type(chip: Chip) -> torch.dtype | None:
    """The e4m3 that the chip converts and multiplies: MI300X has one of its own, A100 none (None)."""
    if chip.backend == "hip":
        return torch.float8_e4m3fnuz
    return torch.float8_e4m3fn if chip.is_cuda(89) else None


def eight_bit_type(kind: EightBits, chip: Chip) -> torch.dtype | None:
    """None: the chip has no such number."""
    return torch.int8 if kind == "int8" else fp8_type(chip)
