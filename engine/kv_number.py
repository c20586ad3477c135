"""In which numbers a GPU keeps keys and values: those of the computation, or eight bits with scales."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from headway.engine.errors import ModelError
from headway.engine.model_config import ModelConfig
from headway.kernels.eight_bit_cache import SCALE_BYTES
from headway.kernels.eight_bits import eight_bit_type
from headway.kernels.launch import Chip

GpuKvCacheDType: TypeAlias = Literal["auto", "bf16", "int8", "fp8"]
"""``int8`` and ``fp8`` (e4m3): one scale per token and kv head. ``auto``: the computation's own."""

WIDE_LOAD = 16
"""Bytes: heads begin at multiples of it."""


def choose_kv_number(
    wanted: GpuKvCacheDType, config: ModelConfig, *, dtype: torch.dtype, block_size: int, chip: Chip
) -> torch.dtype | None:
    """The number of pools in eight bits; None: the computation's own. ModelError: it cannot be had here."""
    if wanted == "auto" or (wanted == "bf16" and dtype == torch.bfloat16):
        return None
    name = str(dtype).removeprefix("torch.")
    if wanted == "bf16":
        raise ModelError(
            f"a KV cache in bf16 needs a computation in bfloat16, and this one is in {name}; "
            "take --dtype bfloat16 or --kv-cache-dtype auto"
        )
    number = eight_bit_type(wanted, chip)
    obstacle, instead = None, "auto"
    if number is None:
        obstacle = f"a GPU of {chip.name}'s kind has no such number (L4, H100 and newer, and MI300X, have)"
        instead = "int8"
    elif dtype != torch.bfloat16:
        obstacle = f"it goes with --dtype bfloat16, and this computation is in {name}"
    elif block_size * (config.head_dim + SCALE_BYTES) % WIDE_LOAD:
        obstacle = (
            f"a head of a block ({block_size} tokens of {config.head_dim} numbers and a scale) is no "
            f"multiple of {WIDE_LOAD} bytes (--block-size 16 always is)"
        )
    if obstacle is not None:
        raise ModelError(f"no KV cache in {wanted}: {obstacle}; take --kv-cache-dtype {instead}")
    return number
