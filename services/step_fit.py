"""Fits a machine's step line to measured steps: least squares of the relative error, nothing below zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from headway.services.hardware import StepWork
from headway.services.step_times import StepLine, grouped_means

KNOTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
RATIO_GROUPS: Final = 100
LEAST_STEPS: Final = 30
"""Below this a line through so many knots would say nothing."""
MOST_RATIO: Final = 8.0
"""A step that took longer than so many times its line waited for something else: counted as this long."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One step: what it computed, and how long it took."""

    work: StepWork
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """The line, and how far steps were from it."""

    line: StepLine
    steps: int
    error_median: float
    """Of the relative error of single steps."""


def fit(steps: Sequence[Measured]) -> Fit:
    """The line of least relative squares. Raises ValueError for fewer steps than ``LEAST_STEPS``."""
    if len(steps) < LEAST_STEPS:
        raise ValueError(f"{len(steps)} steps were measured; {LEAST_STEPS} are needed at least")
    knots = _knots(steps)
    seconds = np.array([step.seconds for step in steps])
    rows = np.array([_features(step.work, knots) for step in steps]) / seconds[:, None]
    solved = _not_negative(rows)
    base, *rises = solved[: len(knots)]
    heights = base + np.concatenate([[0.0], np.cumsum(rises)])
    # A line has to begin somewhere above nothing, also where the fit gave everything to the slopes.
    heights = np.maximum(heights, 1e-6)
    per_row, per_context, per_pair = (float(value) for value in solved[len(knots) :])
    line = StepLine(
        tuple((float(knot), float(height)) for knot, height in zip(knots, heights, strict=True)),
        per_row,
        per_context,
        per_pair,
    )
    ratios = [min(step.seconds / line.seconds(step.work), MOST_RATIO) for step in steps]
    errors = sorted(abs(line.seconds(step.work) / step.seconds - 1) for step in steps)
    return Fit(
        replace(line, ratios=grouped_means(ratios, RATIO_GROUPS)), len(steps), errors[len(errors) // 2]
    )


def _knots(steps: Sequence[Measured]) -> list[int]:
    """Those among which steps were measured, so that none hangs in the air; two at least."""
    most = max(step.work.new_tokens for step in steps)
    kept = [knot for knot in KNOTS if knot <= most]
    return kept if len(kept) >= 2 else list(KNOTS[:2])


def _features(work: StepWork, knots: Sequence[int]) -> list[float]:
    """The first knot's height, how much of each rise between knots the step has, and the other prices."""
    rises = [(work.new_tokens - a) / (b - a) for a, b in pairwise(knots)]
    # The last rise goes on for ever.
    parts = [min(max(rise, 0.0), 1.0) for rise in rises[:-1]] + [max(rises[-1], 0.0)]
    return [1.0, *parts, float(work.rows), float(work.context_tokens), work.pairs]


def _not_negative(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """x ≥ 0 with rows·x nearest to 1: what comes out negative is left out, and the rest fitted again."""
    scale = np.abs(rows).mean(axis=0)
    scale[scale == 0.0] = 1.0
    kept = list(range(rows.shape[1]))
    solved: npt.NDArray[np.float64] = np.zeros(0)
    while kept:
        least = np.linalg.lstsq(rows[:, kept] / scale[kept], np.ones(len(rows)), rcond=None)
        solved = cast("npt.NDArray[np.float64]", least[0])
        if (solved >= 0.0).all():
            break
        del kept[int(np.argmin(solved))]
    whole: npt.NDArray[np.float64] = np.zeros(rows.shape[1])
    whole[kept] = solved / scale[kept]
    return whole
