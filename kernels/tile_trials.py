"""What is measured on a chip before a model is served there: each class of launches, by each of its tiles.

    trial     one shape of one kernel: a product of the model's for up to so many rows, or its attention
    tile      one of a few launch configurations, by name; the first is the one that nobody has to measure

A trial's name says all that its answer depends on, beside chip, compiler and kernels. Shapes are the model's
own, contents are noise: no time depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headway.kernels.attention_cases import Heads, Lengths, attention_variants_of
from headway.kernels.cases import Prepare
from headway.kernels.eight_bits import EightBits
from headway.kernels.launch import Chip
from headway.kernels.matmul_cases import NAMES, Kind, matmul_variants

DECODES: Lengths = ((1, 1024),) * 32
"""(new, context) tokens of what attention is measured with: a full step of decodes, and …"""
CHUNK: Lengths = (*((1, 1024),) * 31, (512, 1024))
"""… one of them with a chunk of a prompt."""


@dataclass(frozen=True, slots=True)
class TileTrial:
    """One class of launches; nobody has to ask where there is one tile."""

    name: str
    tiles: Mapping[str, Prepare]
    """By name, today's first."""

    @property
    def is_open(self) -> bool:
        """Is there anything to choose from?"""
        return len(self.tiles) > 1


def matmul_trial(kind: Kind, rows: int, columns: int, depth: int, chip: Chip, *, has_bias: bool) -> TileTrial:
    """A product with a weight [columns, depth] of one byte, for up to ``rows`` rows (``row_class``)."""
    shape = f"{columns} x {depth}" + (" and a bias" if has_bias else "")
    name = f"{NAMES[kind]}, {shape}, {rows} rows"
    return TileTrial(name, matmul_variants(kind, rows, columns, depth, chip, has_bias=has_bias))


def attention_trial(heads: Heads, lengths: Lengths, quantized: EightBits | None, chip: Chip) -> TileTrial:
    """Attention of decodes alone, or with a chunk."""
    number = str(heads.dtype).removeprefix("torch.")
    shape = f"{heads.query_heads} on {heads.kv_heads} heads of {heads.head_dim}, {number}"
    cache = f"blocks of {heads.block_size}" + (f" in {quantized}" if quantized else "")
    window = f", window of {heads.sliding_window}" if heads.sliding_window else ""
    what = "decodes" if max(new for new, _ in lengths) == 1 else "decodes and a chunk"
    name = f"paged attention, {shape}, {cache}{window}, {what}"
    return TileTrial(name, attention_variants_of(heads, lengths, quantized, chip))
