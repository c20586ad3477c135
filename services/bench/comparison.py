"""Results side by side: arms over the load, ratios to the first, and whether they did the same work.

Results with the same label are rounds of one arm: a figure of theirs is its median over the rounds.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headway.services.bench.bench_table import load_of, value_at
from headway.services.bench.knee import Knee, find_knee, is_believed
from headway.services.errors import UsageError

FORMAT: Final = 1
FIGURES: Final[tuple[tuple[str, tuple[str, ...], bool], ...]] = (
    ("goodput", ("goodput_per_second",), True),
    ("requests/s", ("requests_per_second",), True),
    ("tokens/s", ("tokens_per_second",), True),
    ("within all limits", ("attainment",), True),
    ("TTFT P50", ("ttft_seconds", "p50"), False),
    ("TTFT P99", ("ttft_seconds", "p99"), False),
    ("TPOT P50", ("tpot_seconds", "p50"), False),
    ("TPOT P99", ("tpot_seconds", "p99"), False),
    ("ITL P99", ("itl_seconds", "p99"), False),
    ("E2E P99", ("e2e_seconds", "p99"), False),
    ("Jain index", ("jain_index",), True),
)
"""Name, place, and whether more is better."""
_ABOUT_THE_ARM: Final = frozenset(
    {
        "url",
        "model",
        "worker_urls",
        "rates",
        "rate_scales",
        "finds_knee",
        "most_points",
        "max_lateness",
        "max_client_cpu",
        "counts_events",
        "max_open",
        "client_processes",
        "seed",
    }
)
"""Settings in which arms may differ without doing other work."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm, in one or several rounds."""

    label: str
    rounds: tuple[Mapping[str, Any], ...]

    @property
    def loads(self) -> list[float]:
        """Rates or clients that were measured, in order."""
        return sorted({load_of(point) for result in self.rounds for point in result["points"]})

    def points(self, load: float) -> list[Mapping[str, Any]]:
        """Of all rounds, at one load."""
        return [point for result in self.rounds for point in result["points"] if load_of(point) == load]

    def value(self, load: float, path: tuple[str, ...]) -> float | None:
        """The median over the rounds; None where nothing was measured."""
        values = [value_at(point, path) for point in self.points(load)]
        known = [float(value) for value in values if value is not None]
        return statistics.median(known) if known else None

    def line(self, path: tuple[str, ...]) -> list[tuple[float, float]]:
        """A figure over the load."""
        pairs = ((load, self.value(load, path)) for load in self.loads)
        return [(load, value) for load, value in pairs if value is not None]

    @property
    def knee(self) -> Knee:
        """By the medians of the points that can be believed."""
        goal = float(self.rounds[0]["settings"]["attainment"])
        rounds = tuple({**each, "points": [*filter(is_believed, each["points"])]} for each in self.rounds)
        believed = Arm(self.label, rounds)
        return find_knee({load: believed.value(load, ("attainment",)) for load in believed.loads}, goal)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Arms, and the load at which they are looked at closely."""

    arms: tuple[Arm, ...]
    at: float
    notes: tuple[str, ...]

    @property
    def loads(self) -> list[float]:
        """All that any arm was measured at."""
        return sorted({load for arm in self.arms for load in arm.loads})

    def ratio(self, arm: Arm, load: float, path: tuple[str, ...]) -> float | None:
        """The arm's figure over the first arm's; None where either has none."""
        base, value = self.arms[0].value(load, path), arm.value(load, path)
        return None if not base or value is None else value / base

    def figures(self) -> dict[str, Any]:
        """Everything as JSON."""
        return {
            "headway_bench_compare": FORMAT,
            "at": self.at,
            "notes": list(self.notes),
            "arms": [
                {"label": arm.label, "rounds": len(arm.rounds), "knee": arm.knee.shown()} for arm in self.arms
            ],
            "cells": [
                {
                    "label": arm.label,
                    "load": load,
                    "figures": {name: arm.value(load, path) for name, path, _ in FIGURES},
                    "ratios": {name: self.ratio(arm, load, path) for name, path, _ in FIGURES},
                }
                for load in self.loads
                for arm in self.arms
                if arm.points(load)
            ],
        }


def read_arms(files: Sequence[Path], labels: Sequence[str]) -> tuple[Arm, ...]:
    """Read what ``headway bench --json`` wrote. Raises UsageError."""
    if labels and len(labels) != len(files):
        raise UsageError(
            f"{len(files)} files and {len(labels)} labels",
            hint="one --label for each file, in the same order",
        )
    rounds: dict[str, list[Mapping[str, Any]]] = {}
    for file, label in zip(files, labels or [file.stem for file in files], strict=True):
        rounds.setdefault(label, []).append(read_result(file))
    return tuple(Arm(label, tuple(results)) for label, results in rounds.items())


def read_result(file: Path) -> dict[str, Any]:
    """One result. Raises UsageError for a file that is none, or holds no point."""
    try:
        read: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file}: {error}") from None
    if not isinstance(read, dict) or "headway_bench" not in read or "points" not in read:
        raise UsageError(f"{file} is no result of headway bench --json")
    if not read["points"]:
        raise UsageError(f"{file} holds no measured point")
    return dict(read)  # pyright: ignore[reportUnknownArgumentType]  # JSON


def compare(arms: tuple[Arm, ...], at: float | None) -> Comparison:
    """Set them side by side. Raises UsageError where they cannot be."""
    kinds = {
        point["concurrency"] is None for arm in arms for result in arm.rounds for point in result["points"]
    }
    if len(kinds) > 1:
        raise UsageError("open and closed loop cannot stand on one axis: compare results of one kind")
    if at is not None and not any(at in arm.loads for arm in arms):
        known = ", ".join(f"{load:g}" for load in sorted({load for arm in arms for load in arm.loads}))
        raise UsageError(f"nothing was measured at {at:g}", hint=f"--at with one of {known}")
    return Comparison(arms, telling_load(arms) if at is None else at, tuple(_notes(arms)))


def telling_load(arms: Sequence[Arm]) -> float:
    """The first arm's knee; where it has none, the load of its most goodput, at best one that all have."""
    first = arms[0]
    served = first.knee.served
    if served is not None and first.knee.failed is not None:
        return served
    common = [load for load in first.loads if all(load in arm.loads for arm in arms)]
    return max(common or first.loads, key=lambda load: first.value(load, ("goodput_per_second",)) or 0.0)


def _notes(arms: Sequence[Arm]) -> list[str]:
    """What makes a comparison less than it looks."""
    notes: list[str] = []
    seeds = [{result["settings"].get("seed", 0) for result in arm.rounds} for arm in arms]
    if any(each != seeds[0] for each in seeds):
        notes.append("the arms had other seeds: other arrivals and prompts, of the same kind")
    first = arms[0].rounds[0]
    for arm in arms:
        for result in arm.rounds:
            other = [
                f"{name} {_short(result['settings'].get(name))} instead of {_short(value)}"
                for name, value in first["settings"].items()
                if name not in _ABOUT_THE_ARM and result["settings"].get(name) != value
            ]
            if other:
                notes.append(f"{arm.label} did not do the same work: {', '.join(other)}")
            if result["machine"]["processor"] != first["machine"]["processor"]:
                notes.append(
                    f"{arm.label} was measured on another machine ({result['machine']['processor']})"
                )
            if not result["valid"]:
                notes.append(f"{arm.label} has points that are invalid: its client was the bottleneck")
            if result["interrupted"]:
                notes.append(f"{arm.label} was interrupted")
    return list(dict.fromkeys(notes))


def _short(value: Any) -> str:
    return json.dumps(value)
