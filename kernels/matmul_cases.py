"""Launches of ``scaled_matmul`` at the shapes of Llama 3 8B, decoding and prefilling."""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias

import torch

from headway.kernels.cases import Case, Outputs, Prepare, Trial, Unit
from headway.kernels.eight_bits import fp8_type
from headway.kernels.launch import DEFAULT_TILE, Chip, Counts
from headway.kernels.matmul_tiles import matmul_tiles
from headway.kernels.scaled_matmul import (
    parts_for,
    scaled_matmul_launches,
    scaled_matmul_reference,
)

Kind: TypeAlias = Literal["W8", "F8", "W8A8", "F8A8"]
"""int8 weights, fp8 weights, int8 by int8, fp8 by fp8."""

UNITS: dict[Kind, Unit] = {"W8": "bfloat16", "F8": "bfloat16", "W8A8": "int8", "F8A8": "fp8"}
NAMES: dict[Kind, str] = {
    "W8": "int8 weight-only product",
    "F8": "fp8 weight-only product",
    "W8A8": "int8 by int8 product",
    "F8A8": "fp8 by fp8 product",
}


NARROW: frozenset[Kind] = frozenset({"W8A8", "F8A8"})
"""With activations of one byte."""


def prepare_matmul(
    device: torch.device,
    chip: Chip,
    *,
    kind: Kind,
    rows: int,
    columns: int,
    depth: int,
    has_bias: bool = True,
    tile: str = DEFAULT_TILE,
) -> Trial:
    """A product of this shape by one of its tiles. Without a bias Triton compiles another kernel."""

    def field(count: int, factor: int, span: int) -> torch.Tensor:
        return (torch.arange(count, device=device) * factor) % span - span // 2

    # A100 multiplies no fp8: what is refused there is compiled as int8.
    narrow = fp8_type(chip) if kind == "F8A8" else None
    both = kind in NARROW
    x = field(rows * depth, 40503, 251).view(rows, depth)
    x = (x.float() / 64).to(narrow or torch.bfloat16) if narrow or not both else x.to(torch.int8)
    weight = field(columns * depth, 48271, 253).view(columns, depth)
    fp8 = torch.float8_e4m3fn if kind == "F8" else narrow
    weight = (weight.float() / 8).to(fp8) if fp8 else weight.to(torch.int8)
    weight_scale = (field(columns, 31, 17).abs() + 1).float() * 1e-3
    row_scale = (field(rows, 29, 13).abs() + 1).float() * 1e-2 if both else None
    bias = field(columns, 37, 19).to(torch.bfloat16) if has_bias else None
    out = torch.empty((rows, columns), dtype=torch.bfloat16, device=device)
    chosen = matmul_tiles(rows, x.element_size(), chip)[tile]
    parts = parts_for(x, weight, chip, chosen)

    def launch() -> Outputs:
        for each in scaled_matmul_launches(
            x, weight, weight_scale, row_scale, bias, out, parts, tile=chosen, chip=chip
        ):
            each.run()
        return (out,)

    def reference() -> Outputs:
        return (
            scaled_matmul_reference(
                x, weight, weight_scale, row_scale=row_scale, bias=bias, dtype=torch.bfloat16
            ),
        )

    return Trial(launch, reference)


def matmul_variants(
    kind: Kind, rows: int, columns: int, depth: int, chip: Chip, *, has_bias: bool = True
) -> dict[str, Prepare]:
    """By name, today's first: the product by each of its tiles. fp8 by fp8 is torch's, or has one."""
    names = matmul_tiles(rows, 1 if kind in NARROW else 2, chip)
    shape = partial(prepare_matmul, kind=kind, rows=rows, columns=columns, depth=depth, has_bias=has_bias)
    return {} if kind == "F8A8" else {name: partial(shape, tile=name) for name in names}


def scaled_matmul_counts(rows: int, columns: int, depth: int, *, x_bytes: int = 2) -> Counts:
    """Weights of one byte, activations and scales read once, results of two bytes written once."""
    scales = 4 * columns + (4 * rows if x_bytes == 1 else 0)
    return Counts(
        columns * depth + rows * depth * x_bytes + scales, 2 * rows * columns, 2 * rows * columns * depth
    )


def _case(kind: Kind, label: str, rows: int, columns: int, depth: int, *, tiny: bool = False) -> Case:
    return Case(
        NAMES[kind],
        label,
        scaled_matmul_counts(rows, columns, depth, x_bytes=1 if kind in NARROW else 2),
        partial(prepare_matmul, kind=kind, rows=rows, columns=columns, depth=depth),
        UNITS[kind],
        tiny=tiny,
        relative_tolerance=2**-8,  # one rounding to bf16, of float32 sums in another order
        tiles=partial(matmul_variants, kind, rows, columns, depth),
    )


def _kinds(label: str, rows: int, columns: int, depth: int, *, tiny: bool = False) -> tuple[Case, ...]:
    kinds: tuple[Kind, ...] = ("W8", "F8", "W8A8")
    return tuple(_case(kind, label, rows, columns, depth, tiny=tiny) for kind in kinds)


CASES = (
    *_kinds("Llama 3 8B gate and up, 1 row", 1, 28_672, 4096),
    *_kinds("Llama 3 8B down, 1 row", 1, 4096, 14_336),
    *_kinds("Llama 3 8B down, 32 rows", 32, 4096, 14_336),
    *_kinds("Llama 3 8B gate and up, 64 rows", 64, 28_672, 4096),
    *_kinds("Llama 3 8B down, 128 rows", 128, 4096, 14_336),
    *_kinds("Llama 3 8B gate and up, 2048 rows", 2048, 28_672, 4096),
    _case("F8A8", "Llama 3 8B down, 32 rows", 32, 4096, 14_336),
    _case("F8A8", "Llama 3 8B gate and up, 2048 rows", 2048, 28_672, 4096),
    *_kinds("tiny", 5, 70, 1100, tiny=True),
    _case("F8A8", "tiny", 5, 70, 1100, tiny=True),
)
