"""A few tiles for attention's kernel, of which a chip says which is the fastest (``tile_trials``).

    decodes           short     half the keys at a time: less shared memory, more programs on a processor
                      pair      two warps: programs of few rows leave two of four idle
                      deep      one more stage of the pipeline: more loads under way
    prefill chunks    short     as above: fewer registers for scores
                      shallow   one stage less
                      tall      twice the rows, by eight warps: keys are read half as often

Each differs from today's in one thing, holds its pipeline in the chip's shared memory, and is compiled for
every chip without spilling (``tests/kernels/test_compile.py``). float32 has today's alone: it is there to be
compared with. How keys are split over programs is not measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch

from headway.kernels.attention_plan import AttentionShape
from headway.kernels.launch import DEFAULT_TILE, Chip, next_power_of_two

Precision: TypeAlias = Literal["ieee", "tf32x3"]

FEWEST_KEYS = 16
"""The matrix unit's least side."""


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Launch configuration of the attention kernel."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int
    skip_masks: bool
    """Run keys that every row sees without masking them."""
    precision: Precision
    """How float32 is multiplied; other types have one way."""


def attention_variants(
    tile: AttentionTile, shape: AttentionShape, chip: Chip, *, is_decode: bool
) -> dict[str, AttentionTile]:
    """By name, ``tile`` first, which is today's for decodes alone or for a batch with prefill chunks."""
    if shape.dtype == torch.float32:
        return {DEFAULT_TILE: tile}
    is_cuda = chip.backend == "cuda"
    is_blackwell = is_cuda and int(chip.architecture) >= 100
    others = {"short": replace(tile, keys=tile.keys // 2)}
    if is_decode:
        if shape.head_dim <= 128:  # two warps' registers hold no wider sums on L4
            others["pair"] = replace(tile, num_warps=2)
        if is_cuda:
            others["deep"] = replace(tile, num_stages=tile.num_stages + 1)
    elif is_cuda:  # AMD's has one stage, and its registers are full
        if not is_blackwell:  # there it spills
            others["shallow"] = replace(tile, num_stages=tile.num_stages - 1)
        # Wider sums of twice the rows, or scales beside them, are more than the registers hold.
        if shape.head_dim <= 128 and not shape.has_eight_bits:
            others["tall"] = replace(tile, rows=2 * tile.rows, num_warps=8)
    return {DEFAULT_TILE: tile} | {name: other for name, other in others.items() if _fits(other, shape, chip)}


def _fits(tile: AttentionTile, shape: AttentionShape, chip: Chip) -> bool:
    """Has the matrix unit keys enough, and the chip room for stages, queries and weights?"""
    width = next_power_of_two(shape.head_dim) * shape.dtype.itemsize
    stages = tile.num_stages * 2 * tile.keys * width
    rows = tile.rows * (width + tile.keys * shape.dtype.itemsize)
    return tile.keys >= FEWEST_KEYS and stages + rows <= chip.shared_bytes
