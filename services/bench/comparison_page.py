"""Arms side by side as a page: curves over the load, ratios, and who ran when in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from headway.services.bench.bench_page import (
    knobs,
    latency_axis,
    limit_of,
    load_axis,
    share_axis,
    shares,
    warnings,
)
from headway.services.bench.bench_table import limits_sentence, number
from headway.services.bench.chart import Axis, Chart, Series, figure
from headway.services.bench.comparison import FIGURES, Arm, Comparison
from headway.services.bench.comparison_table import head, load_unit, sentences, show_figure, show_ratio
from headway.services.bench.page import details, page
from headway.services.bench.timeline_picture import end_of, strip_tops, timeline

NO_DIFFERENCE: Final = 0.02
"""A ratio this close to 1 is not coloured: two runs of one arm differ by as much."""
_COLOURS: Final = 6
_CURVES: Final = (
    ("TTFT P50", ("ttft_seconds", "p50"), "ttft_seconds"),
    ("TTFT P99", ("ttft_seconds", "p99"), "ttft_seconds"),
    ("TPOT P50", ("tpot_seconds", "p50"), "tpot_seconds"),
    ("TPOT P99", ("tpot_seconds", "p99"), "tpot_seconds"),
    ("ITL P99", ("itl_seconds", "p99"), ""),
    ("E2E P99", ("e2e_seconds", "p99"), "e2e_seconds"),
)


def comparison_page(comparison: Comparison) -> str:
    """HTML that stands alone."""
    arms = comparison.arms
    title = " against ".join(arm.label for arm in arms)
    work = arms[0].rounds[0]["work"]["summary"]
    model = arms[0].rounds[0]["target"]["model"]
    parts = [f"<h1>{escape(title)}</h1>", f'<p class="muted">{escape(model)} · {escape(work)}</p>']
    for arm in arms:
        for result in arm.rounds:
            parts += warnings({**result, "notes": []}, arm.label)
    parts += [f'<div class="note">{escape(note)}</div>' for note in comparison.notes]
    parts += [f"<p>{escape(sentence[0].upper() + sentence[1:])}.</p>" for sentence in sentences(comparison)]
    if len(comparison.loads) > 1:
        parts += ["<h2>Over the load</h2>", '<div class="charts">', *_curves(comparison), "</div>"]
    unit = load_unit(comparison)
    parts += [
        f"<h2>At {comparison.at:g}{unit}</h2>",
        '<div class="charts">',
        *_distributions(comparison),
        "</div>",
    ]
    parts += ["<h2>Who ran when</h2>", *_timelines(comparison)]
    parts += ["<h2>All figures</h2>", _table(comparison), "<h2>How it was measured</h2>"]
    parts += [
        details(f"{arm.label}, round {number_of + 1}" if len(arm.rounds) > 1 else arm.label, knobs(result))
        for arm in arms
        for number_of, result in enumerate(arm.rounds)
    ]
    return page(f"headway bench: {title}", parts)


def _lines(comparison: Comparison, path: tuple[str, ...]) -> list[Series]:
    return [
        Series(arm.label, arm.line(path), f"c{place % _COLOURS}", is_dashed=place >= _COLOURS)
        for place, arm in enumerate(comparison.arms)
    ]


def _curves(comparison: Comparison) -> list[str]:
    result = comparison.arms[0].rounds[0]
    slos, x = result["slos"], load_axis(result["points"])
    good = _lines(comparison, ("goodput_per_second",))
    if load_unit(comparison) == " requests/s":
        sent = [(load, load) for load in comparison.loads]
        good.append(Series("sent", sent, "faint", is_dashed=True, has_marks=False))
    charts = [
        Chart("Goodput", f"requests per second {limits_sentence(slos)}", x, Axis("", number), good),
        Chart(
            "Within all limits",
            "share of the requests",
            x,
            share_axis(),
            _lines(comparison, ("attainment",)),
        ),
        Chart(
            "Throughput",
            "answer tokens per second",
            x,
            Axis("", number),
            _lines(comparison, ("tokens_per_second",)),
        ),
    ]
    charts += [
        Chart(name, "against the load", x, latency_axis(), _lines(comparison, path), limit_of(slos, limit))
        for name, path, limit in _CURVES
    ]
    return [figure(chart) for chart in charts]


def _distributions(comparison: Comparison) -> list[str]:
    drawn: list[str] = []
    for name, key in (("TTFT", "ttft_seconds"), ("ITL", "itl_seconds"), ("E2E", "e2e_seconds")):
        series = [
            Series(arm.label, shares(point["curves"][key]), f"c{place % _COLOURS}", has_marks=False)
            for place, arm in enumerate(comparison.arms)
            if (point := _point(arm, comparison.at)) is not None
        ]
        what = "gaps between events" if key == "itl_seconds" else "requests"
        chart = Chart(name, f"share of {what} that took no longer", latency_axis(), share_axis(), series)
        drawn.append(figure(chart))
    return drawn


def _timelines(comparison: Comparison) -> list[str]:
    """Each arm's first round, on the same axes."""
    shown: list[tuple[Arm, Mapping[str, Any], Sequence[str]]] = [
        (arm, point, arm.rounds[0]["request_fields"])
        for arm in comparison.arms
        if (point := _point(arm, comparison.at)) is not None
    ]
    until = max((end_of(point, fields) for _, point, fields in shown), default=0.0)
    tops: dict[str, float] = {}
    for _, point, fields in shown:
        for label, top in strip_tops(point, fields).items():
            tops[label] = max(top, tops.get(label, 0.0))
    return [
        f'<figure class="apart"><figcaption><b>{escape(arm.label)}</b></figcaption>'
        f"{timeline(point, fields, until, tops)}</figure>"
        for arm, point, fields in shown
    ]


def _point(arm: Arm, load: float) -> Mapping[str, Any] | None:
    return next(iter(arm.points(load)), None)


def _table(comparison: Comparison) -> str:
    arms = comparison.arms
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in ("", *(head(arm) for arm in arms)))
    rows: list[str] = []
    for load in comparison.loads:
        rows.append(f"<tr><td><b>{load:g}{load_unit(comparison)}</b></td>{'<td></td>' * len(arms)}</tr>")
        for name, path, more_is_better in FIGURES:
            if any(arm.value(load, path) is not None for arm in arms):
                cells = "".join(
                    _cell(
                        show_figure(name, arm.value(load, path)),
                        comparison.ratio(arm, load, path) if place else None,
                        more_is_better=more_is_better,
                    )
                    for place, arm in enumerate(arms)
                )
                rows.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    body = "".join(rows)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(told: str, ratio: float | None, *, more_is_better: bool) -> str:
    if ratio is None:
        return f"<td>{escape(told)}</td>"
    kind = ""
    if abs(ratio - 1.0) > NO_DIFFERENCE:
        kind = ' class="better"' if (ratio > 1.0) == more_is_better else ' class="worse"'
    return f"<td{kind}>{escape(told)} <i>{show_ratio(ratio)}</i></td>"
