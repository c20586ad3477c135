"""Simulated runs as a picture: TTFT, TPOT, queue and KV use, one colour per policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from headway.services.errors import StartError, UsageError
from headway.services.simulate import Simulated
from headway.services.simulation_report import tpot_seconds, ttft_seconds
from headway.services.simulation_run import Journey

_FORMATS: Final = (".png", ".svg")
_POINTS: Final = 500
"""Of a distribution curve: more cannot be seen."""


def check_plot(path: Path) -> None:
    """Raise before the simulation what would fail after it: the format, the missing extra, the folder."""
    if path.suffix.lower() not in _FORMATS:
        raise UsageError(f"cannot draw {path}", hint="a file name that ends in .png or .svg")
    if not path.parent.is_dir():
        raise UsageError(f"cannot draw {path}: there is no folder {path.parent}")
    if find_spec("matplotlib") is None:
        raise StartError("matplotlib is not installed", hint="pip install 'headway[plot]'")


def draw_plot(path: Path, simulated: Simulated) -> None:
    """Write the picture; raises UsageError when the file cannot be written."""
    check_plot(path)
    # A figure of its own instead of pyplot: no display, no global state. By name: the extra may be absent.
    figure: Any = import_module("matplotlib.figure").Figure(figsize=(11, 7.5), layout="constrained")
    axes = figure.subplots(2, 2)
    limits, runs = simulated.figures["limits"], simulated.runs
    for name, run in runs.items():
        _draw_distribution(axes[0][0], run.journeys, ttft_seconds, name)
        _draw_distribution(axes[0][1], run.journeys, tpot_seconds, name)
        seconds = [point.seconds for point in run.load]
        axes[1][0].plot(seconds, [point.waiting for point in run.load], label=name)
        axes[1][1].plot(seconds, [100 * point.kv_share for point in run.load], label=name)
    _finish_distribution(axes[0][0], "TTFT", limits["ttft_seconds"])
    _finish_distribution(axes[0][1], "TPOT", limits["tpot_seconds"])
    axes[1][0].set(title="waiting requests", xlabel="seconds", ylabel="requests")
    axes[1][1].set(title="KV blocks used", xlabel="seconds", ylabel="%")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    arrivals, hardware = simulated.figures["arrivals"], simulated.figures["hardware"]
    figure.suptitle(
        f"{arrivals['requests']:,} requests, {arrivals['per_second']:.2f}/s, on {hardware['name']}"
    )
    try:
        figure.savefig(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error}") from None


def _draw_distribution(
    axis: Any, journeys: Sequence[Journey], measure: Callable[[Journey], float | None], name: str
) -> None:
    """Share of requests (from above, so that the tail shows on a log scale) over the measure."""
    ordered = sorted(value for value in map(measure, journeys) if value is not None)
    places = (
        sorted({round(place * (len(ordered) - 1) / _POINTS) for place in range(_POINTS + 1)})
        if ordered
        else []
    )
    axis.plot(
        [ordered[place] for place in places], [1 - place / len(ordered) for place in places], label=name
    )


def _finish_distribution(axis: Any, name: str, limit: float) -> None:
    axis.axvline(limit, color="grey", linestyle=":", label=f"limit {limit:g} s")
    axis.set(title=f"{name}: share of requests above", xlabel="seconds", xscale="log", yscale="log")
