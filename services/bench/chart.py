"""Line charts as SVG: few marks, colours from the page's style sheet, values as tooltips."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

WIDTH: Final = 420
HEIGHT: Final = 250
LEFT: Final = 54
RIGHT: Final = 14
TOP: Final = 12
BOTTOM: Final = 40
"""Of the drawing; a phone shows it at about this size."""
_LEAST_LOG: Final = 1e-4
Scale = Literal["linear", "log"]
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Series:
    """One line. ``colour``: a class of the style sheet, ``c0``, ``c1`` …, ``faint``."""

    name: str
    points: Points
    colour: str
    is_dashed: bool = False
    has_marks: bool = True


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction. ``show`` words a tick's value."""

    label: str
    show: Callable[[float], str]
    scale: Scale = "linear"
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture; ``limits``: lines across it with a word each, such as an SLO."""

    title: str
    note: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    limits: Sequence[tuple[str, float]] = ()


def figure(chart: Chart) -> str:
    """A ``figure`` with its heading, legend and drawing; empty where there is nothing to draw."""
    shown = [series for series in chart.series if series.points]
    if not shown:
        return ""
    legend = "".join(
        f'<span class="key {_classes(series)}">{escape(series.name)}</span>'
        for series in shown
        if series.name
    )
    return (
        f'<figure class="chart"><figcaption><b>{escape(chart.title)}</b> <i>{escape(chart.note)}</i>'
        f'</figcaption><div class="legend">{legend}</div>{_drawing(chart, shown)}</figure>'
    )


def _drawing(chart: Chart, shown: Sequence[Series]) -> str:
    xs = [x for series in shown for x, _ in series.points]
    ys = [y for series in shown for _, y in series.points]
    across = _Span(chart.x, xs, LEFT, WIDTH - RIGHT)
    # A limit far from every value would flatten what there is to see.
    near = [at for _, at in chart.limits if at <= 4 * max(ys, default=at) or chart.y.scale == "log"]
    up = _Span(chart.y, [*ys, *near], HEIGHT - BOTTOM, TOP)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}">']
    for at in up.ticks():
        y = up.place(at)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{chart.y.show(at)}</text>'
        )
    for at in across.ticks():
        x = across.place(at)
        # A word in the middle of its tick would be cut off at the right edge.
        anchor = "end" if x > WIDTH - RIGHT - 8 else "middle"
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="{anchor}">'
            f"{chart.x.show(at)}</text>"
        )
    parts.append(
        f'<text class="label" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{escape(chart.x.label)}</text>"
    )
    for word, at in chart.limits:
        if up.low <= at <= up.high:
            y = up.place(at)
            parts.append(f'<path class="limit" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            parts.append(
                f'<text class="limit-word" x="{WIDTH - RIGHT}" y="{y - 4:.1f}" text-anchor="end">'
                f"{escape(word)}</text>"
            )
    for series in shown:
        parts += _line(series, chart, across, up)
    return "".join(parts) + "</svg>"


def _line(series: Series, chart: Chart, across: _Span, up: _Span) -> Iterator[str]:
    places = [(across.place(x), up.place(y)) for x, y in series.points]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    yield f'<path class="line {_classes(series)}" d="M{path}"/>'
    if not series.has_marks:
        return
    for (x, y), (at, value) in zip(places, series.points, strict=True):
        told = f"{series.name + ', ' if series.name else ''}{chart.x.show(at)}: {chart.y.show(value)}"
        yield f'<circle class="mark {series.colour}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
        yield f"<title>{escape(told)}</title></circle>"


def _classes(series: Series) -> str:
    return f"{series.colour} dashed" if series.is_dashed else series.colour


class _Span:
    """Where values lie between two edges of the drawing."""

    def __init__(self, axis: Axis, values: Sequence[float], start: float, end: float) -> None:
        self._start, self._end = start, end
        self.is_log = axis.scale == "log"
        if self.is_log:
            positive = [value for value in values if value > 0] or [1.0]
            low = axis.low or max(_LEAST_LOG, min(positive))
            high = axis.high or max(positive)
            self.low, self.high = _log_round(low, is_up=False), _log_round(high, is_up=True)
        else:
            self.low = 0.0 if axis.low is None else axis.low
            top = max(values, default=1.0) if axis.high is None else axis.high
            step = _step(max(top - self.low, 1e-9))
            self.high = (
                self.low + step * math.ceil((top - self.low) / step - 1e-9) if axis.high is None else top
            )
        if self.high <= self.low:
            self.high = self.low * 10 if self.is_log else self.low + 1.0

    def place(self, value: float) -> float:
        """In units of the drawing; what lies outside is drawn at the edge."""
        inside = min(self.high, max(self.low, value))
        share = (
            math.log(inside / self.low) / math.log(self.high / self.low)
            if self.is_log
            else (inside - self.low) / (self.high - self.low)
        )
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Round values, few enough to be read."""
        if not self.is_log:
            step = _step(self.high - self.low)
            return [self.low + step * place for place in range(round((self.high - self.low) / step) + 1)]
        found = [
            float(f"{digit}e{power}")
            for power in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for digit in (1, 2, 5)
        ]
        inside = [value for value in found if self.low * 0.999 <= value <= self.high * 1.001]
        if len(inside) > 7:
            inside = [value for value in inside if f"{value:e}".startswith("1")]
        return inside


def _step(span: float) -> float:
    """A round step that makes four to eight of a span."""
    power = 10.0 ** math.floor(math.log10(span / 4))
    return next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if span / (factor * power) <= 6.0)


def _log_round(value: float, *, is_up: bool) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    rounds = [factor * power for factor in (1.0, 2.0, 5.0, 10.0)]
    if is_up:
        return next(each for each in rounds if each >= value * 0.999)
    return next(each for each in reversed(rounds) if each <= value * 1.001)
