"""What each kernel states about itself: its real launches, what they must move and compute, what comes out.

A kernel file defines ``CASES``, a tuple of ``Case``; ``MODULES`` names the files. One case has four readers:
the compile test runs its launch on ``meta`` tensors for every target, the roofline table reads its counts,
``ops/gpu_check`` runs it on a GPU against its reference and times it, and where there is no GPU the ``tiny``
ones run in Triton's interpreter. A launch is described nowhere else, so no description can differ from what
the engine does. Where a kernel has several tiles to be measured, a case of each (``tile_cases``) has the same
readers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast

import torch
from torch import Tensor

from headway.kernels.launch import DEFAULT_TILE, Chip, Counts

MODULES: tuple[str, ...] = (
    "attention_cases",
    "rope_cases",
    "elementwise_cases",
    "block_copy",
    "sampling_launches",
    "row_log_probabilities",
    "matmul_cases",
    "fixed_matmul",
    "quantize_rows",
    "row_gather",
    "token_mask",
)
"""Kernel files with ``CASES``."""

Unit: TypeAlias = Literal["float32", "bfloat16", "int8", "fp8"]
"""What multiplies: the plain cores (float32), or the matrix cores by the format of their operands."""

Outputs: TypeAlias = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """One launch with its inputs, to be run any number of times."""

    launch: Callable[[], Outputs]
    """Through the launcher that the engine calls."""
    reference: Callable[[], Outputs]
    """The same by the torch reference: same shapes and dtypes."""


Prepare: TypeAlias = Callable[[torch.device, Chip], Trial]
"""Make inputs (on ``meta``: only shapes) from fixed seeds, and decide the launch for a chip."""


def one_tile(_: Chip) -> Mapping[str, Prepare]:
    """What most kernels have: nothing to choose from."""
    return {}


@dataclass(frozen=True, slots=True)
class Case:
    """A launch at the shape of a real model, or at a ``tiny`` one for the interpreter."""

    kernel: str
    """The operation, as the table shows it."""
    label: str
    """The shape in words: model, rows, dtype."""
    counts: Counts
    prepare: Prepare
    unit: Unit = "float32"
    tiny: bool = False
    absolute_tolerance: float = 0.0
    relative_tolerance: float = 0.0
    """Of the largest value of an output; outputs of integers must be equal."""
    tiles: Callable[[Chip], Mapping[str, Prepare]] = one_tile
    """By name, today's first: the tiles that a chip may be measured with."""

    @property
    def name(self) -> str:
        """Unique among cases."""
        return f"{self.kernel}, {self.label}"


def noise(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    """Normal numbers, the same at each call with a seed on one device."""
    if device.type == "meta":
        return torch.empty(shape, dtype=dtype, device=device)
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device).to(dtype)


def cases(*, tiny: bool = False) -> tuple[Case, ...]:
    """Those of all kernel files, in order: the real ones, or the tiny ones."""
    found: list[Case] = []
    for name in MODULES:
        module = importlib.import_module(f"headway.kernels.{name}")
        found += [case for case in cast("tuple[Case, ...]", module.CASES) if case.tiny is tiny]
    return tuple(found)


def tile_cases(chip: Chip, *, tiny: bool = False) -> tuple[Case, ...]:
    """One for each tile that a launch may have on this chip, beside the one that its own case has."""
    return tuple(
        replace(case, label=f"{case.label}, tile {name}", prepare=prepare, tiles=one_tile)
        for case in cases(tiny=tiny)
        for name, prepare in case.tiles(chip).items()
        if name != DEFAULT_TILE
    )


def differences(case: Case, ours: Outputs, expected: Outputs) -> list[str]:
    """What in ``ours`` is not as expected, in words; empty: the case holds."""
    pairs = enumerate(zip(ours, expected, strict=True))
    found = ((index, _difference(case, mine, wanted)) for index, (mine, wanted) in pairs)
    return [f"output {index}: {text}" for index, text in found if text]


def _difference(case: Case, mine: Tensor, wanted: Tensor) -> str:
    if mine.shape != wanted.shape or mine.dtype != wanted.dtype:
        return f"{mine.dtype} {tuple(mine.shape)} where {wanted.dtype} {tuple(wanted.shape)} is right"
    if not wanted.dtype.is_floating_point:
        unequal = int((mine != wanted).sum())
        return f"{unequal} of {wanted.numel()} integers differ" if unequal else ""
    finite = torch.isfinite(wanted)
    if not torch.equal(torch.isfinite(mine), finite) or not torch.equal(mine[~finite], wanted[~finite]):
        return "infinities are not where they should be"
    gap, size = (mine[finite].double() - wanted[finite].double()).abs(), wanted[finite].double().abs()
    if not gap.numel():
        return ""
    allowed = case.absolute_tolerance + case.relative_tolerance * float(size.max())
    return f"off by {float(gap.max()):.3g}, allowed {allowed:.3g}" if float(gap.max()) > allowed else ""
