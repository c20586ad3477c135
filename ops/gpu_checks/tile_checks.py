"""Each launch by each of its tiles: right, and how fast beside the one that it has by default."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from gpu_checks.timing import Stopwatch

from headway.kernels.cases import Case, Outputs, Prepare, cases, differences
from headway.kernels.launch import DEFAULT_TILE, chip_of


@dataclass(frozen=True, slots=True)
class TileCheck:
    """One launch by one tile."""

    kernel: str
    label: str
    tile: str
    problems: tuple[str, ...]
    seconds: float | None = None
    default_seconds: float | None = None
    """By the tile that it has where nobody measures."""

    @property
    def share(self) -> float | None:
        """Of the default's time."""
        return self.seconds / self.default_seconds if self.seconds and self.default_seconds else None


def check_tiles(watch: Stopwatch, *, is_tiny: bool, repeats: int) -> Iterator[TileCheck]:
    """Launches with something to choose from, one after another, each by its default tile first."""
    chip = chip_of(watch.device)
    for case in cases(tiny=is_tiny):
        tiles = case.tiles(chip)
        if len(tiles) > 1:
            yield from _check(case, tiles, watch, repeats)


def _check(case: Case, tiles: Mapping[str, Prepare], watch: Stopwatch, repeats: int) -> Iterator[TileCheck]:
    expected: Outputs | None = None
    default: float | None = None
    for name, prepare in tiles.items():
        try:
            trial = prepare(watch.device, chip_of(watch.device))
            # The same inputs whatever the tile: one reference for all.
            expected = trial.reference() if expected is None else expected
            problems = tuple(differences(case, trial.launch(), expected))
            seconds = watch.time(trial.launch, repeats=repeats).seconds
        except Exception:  # whatever a tile does, the others are still checked
            yield TileCheck(case.kernel, case.label, name, (traceback.format_exc(limit=-3),))
            continue
        default = seconds if name == DEFAULT_TILE else default
        yield TileCheck(case.kernel, case.label, name, problems, seconds, default)
    if watch.device.type == "cuda":
        torch.cuda.empty_cache()
