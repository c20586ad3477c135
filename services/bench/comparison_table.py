"""Arms side by side for people: a block per load, each figure with its ratio to the first arm's."""

from __future__ import annotations

from typing import Final

from headway.services.bench.bench_table import limits_sentence, number, percent, seconds
from headway.services.bench.comparison import FIGURES, Arm, Comparison

_NAME_WIDTH: Final = 20


def show_figure(name: str, value: float | None) -> str:
    """As its kind is written."""
    if name.startswith(("TTFT", "TPOT", "ITL", "E2E")):
        return seconds(value)
    return percent(value) if name == "within all limits" else number(value)


def show_ratio(ratio: float | None) -> str:
    """``1.52 ×``."""
    if ratio is None:
        return ""
    shown = f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"
    return f"{shown} \N{MULTIPLICATION SIGN}"


def comparison_table(comparison: Comparison) -> list[str]:
    """The lines of the table, and what speaks against it."""
    arms = comparison.arms
    width = max(22, *(len(arm.label) + 2 for arm in arms))
    lines = [f"{'':{_NAME_WIDTH}}" + "".join(f"{head(arm):>{width}}" for arm in arms)]
    unit = load_unit(comparison)
    for load in comparison.loads:
        lines += ["", f"at {load:g}{unit}"]
        for name, path, _ in FIGURES:
            if all(arm.value(load, path) is None for arm in arms):
                continue
            cells: list[str] = []
            for place, arm in enumerate(arms):
                told = show_figure(name, arm.value(load, path))
                ratio = show_ratio(comparison.ratio(arm, load, path)) if place else ""
                cells.append(f"{f'{told}  {ratio:>7}' if ratio else told:>{width}}")
            lines.append(f"{name:{_NAME_WIDTH}}" + "".join(cells))
    lines += ["", *sentences(comparison)]
    return lines + [f"note: {note}" for note in comparison.notes]


def load_unit(comparison: Comparison) -> str:
    """What stands behind a load's number."""
    is_rate = comparison.arms[0].rounds[0]["points"][0]["concurrency"] is None
    return " requests/s" if is_rate else " clients"


def head(arm: Arm) -> str:
    """The label, with the rounds where they are several."""
    return arm.label if len(arm.rounds) == 1 else f"{arm.label}, {len(arm.rounds)} rounds"


def sentences(comparison: Comparison) -> list[str]:
    """Each arm's knee, and what the others are worth at the load that is looked at."""
    unit, first = load_unit(comparison), comparison.arms[0]
    limits = limits_sentence(first.rounds[0]["slos"])
    told: list[str] = []
    if unit == " requests/s":
        goal = f"{100 * float(first.rounds[0]['settings']['attainment']):g} %"
        told += [
            f"{arm.label}: {knee_words(arm)} with {goal} of the requests {limits}" for arm in comparison.arms
        ]
    for arm in comparison.arms[1:]:
        good = comparison.ratio(arm, comparison.at, ("goodput_per_second",))
        late = comparison.ratio(arm, comparison.at, ("ttft_seconds", "p99"))
        parts = [
            f"{show_ratio(ratio)} the {what}"
            for ratio, what in ((good, "goodput"), (late, "TTFT P99"))
            if ratio
        ]
        if parts:
            told.append(f"at {comparison.at:g}{unit} {arm.label} has {' and '.join(parts)} of {first.label}")
    return told


def knee_words(arm: Arm) -> str:
    """Up to which rate it serves."""
    knee = arm.knee
    if knee.served is None and knee.failed is None:
        return "serves an unknown rate (the client was the bottleneck at all of them)"
    if knee.served is None:
        return f"serves less than {knee.failed:g} requests/s"
    if knee.failed is None:
        return f"serves {knee.served:g} requests/s, the highest that was tried,"
    return f"serves {knee.served:g} requests/s, no longer {knee.failed:g},"
