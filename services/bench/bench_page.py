"""The report of one benchmark as a page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from headway.services.bench.bench_table import (
    ROWS,
    heading,
    knee_sentence,
    limit,
    limits_sentence,
    load_name,
    load_of,
    number,
    percent,
    seconds,
    value_at,
)
from headway.services.bench.chart import Axis, Chart, Series, figure
from headway.services.bench.page import details, html_table, page, tiles
from headway.services.bench.timeline_picture import timeline

_LIMITS = {"ttft_seconds": "TTFT", "tpot_seconds": "TPOT", "e2e_seconds": "E2E"}


def bench_page(result: Mapping[str, Any]) -> str:
    """HTML that stands alone, of what ``headway bench --json`` writes."""
    points = result["points"]
    model = result["target"]["model"]
    parts = [f"<h1>{escape(model)}</h1>"]
    parts += [f'<p class="muted">{escape(line)}</p>' for line in heading(result)]
    parts.append(f'<p class="muted">{escape(result["started"])} · {escape(result["machine"]["system"])}</p>')
    parts += warnings(result)
    if points:
        parts.append(tiles(_tiles(result)))
        if result["knee"]:
            told = knee_sentence(result["knee"], result["slos"])
            parts.append(f"<p>{escape(told[0].upper() + told[1:])}.</p>")
        if len(points) > 1:
            parts += ["<h2>Over the load</h2>", '<div class="charts">', *load_charts(result), "</div>"]
        parts += ["<h2>Distributions</h2>", '<div class="charts">', *_distributions(result), "</div>"]
        parts.append("<h2>Who ran when</h2>")
        open_place = _most_telling(result)
        for place, point in enumerate(points):
            drawn = timeline(point, result["request_fields"])
            if drawn:
                parts.append(
                    details(load_name(point), f"<figure>{drawn}</figure>", is_open=place == open_place)
                )
        parts += ["<h2>All figures</h2>", figures_table(points), *_tenants(points), *_errors(points)]
    parts += ["<h2>How it was measured</h2>", knobs(result)]
    return page(f"headway bench: {model}", parts)


def warnings(result: Mapping[str, Any], name: str = "") -> list[str]:
    """What speaks against the figures; ``name``: whose they are, where several are on the page."""
    parts: list[str] = []
    start = escape(f"{name}: " if name else "")
    if not result["valid"]:
        told = "".join(
            f"<br>{escape(load_name(point))}: {escape(complaint)}"
            for point in result["points"]
            for complaint in point["client"]["complaints"]
        )
        words = (
            "Invalid: the client, or its machine, was the bottleneck, so these figures are not the server's."
        )
        parts.append(f'<div class="alarm"><b>{start}{words}</b>{told}</div>')
    if result["interrupted"]:
        words = "Interrupted: the last point was not measured to its end."
        parts.append(f'<div class="alarm"><b>{start}{words}</b></div>')
    return parts + [f'<div class="note">{start}{escape(note)}</div>' for note in result["notes"]]


def _tiles(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    points = result["points"]
    best = max(points, key=lambda point: point["goodput_per_second"] or 0.0)
    most = max(points, key=lambda point: point["tokens_per_second"] or 0.0)
    return [
        (
            f"{number(best['goodput_per_second'])}/s",
            f"most goodput ({limits_sentence(result['slos'])}), at {load_name(best)}",
        ),
        (f"{number(most['tokens_per_second'])}/s", f"most answer tokens, at {load_name(most)}"),
        (seconds(best["ttft_seconds"]["p99"]), f"TTFT P99 at {load_name(best)}"),
        (seconds(best["tpot_seconds"]["p99"]), f"TPOT P99 at {load_name(best)}"),
    ]


def load_axis(points: Sequence[Mapping[str, Any]]) -> Axis:
    """Of the rates, or of the clients."""
    label = "clients" if points[0]["concurrency"] is not None else "requests sent per second"
    return Axis(label, lambda value: f"{value:g}")


def line_of(points: Sequence[Mapping[str, Any]], *path: str) -> list[tuple[float, float]]:
    """A figure over the load, where it was measured."""
    pairs = ((load_of(point), value_at(point, path)) for point in points)
    return [(load, float(value)) for load, value in pairs if value is not None]


def latency_axis(label: str = "") -> Axis:
    """Seconds on a logarithmic scale."""
    return Axis(label, limit, "log")


def share_axis() -> Axis:
    """From nobody to all."""
    return Axis("", lambda value: f"{100 * value:g} %", high=1.0)


def limit_of(slos: Mapping[str, Any], key: str) -> list[tuple[str, float]]:
    """The line of an SLO."""
    return [] if slos.get(key) is None else [(f"limit {limit(slos[key])}", slos[key])]


def load_charts(result: Mapping[str, Any]) -> list[str]:
    """Goodput, throughput and latencies over the load."""
    points, slos = result["points"], result["slos"]
    x = load_axis(points)
    good = [Series("goodput", line_of(points, "goodput_per_second"), "c2")]
    good.append(Series("finished", line_of(points, "requests_per_second"), "c0"))
    if points[0]["rate"] is not None:
        sent = [(load_of(point), load_of(point)) for point in points]
        good.append(Series("sent", sent, "faint", is_dashed=True, has_marks=False))
    charts = [
        Chart("Goodput", f"requests per second {limits_sentence(slos)}", x, Axis("", number), good),
        Chart(
            "Throughput",
            "answer tokens per second",
            x,
            Axis("", number),
            [Series("tokens", line_of(points, "tokens_per_second"), "c0")],
        ),
        Chart("Within the limits", "share of the requests", x, share_axis(), _attainments(points, slos)),
    ]
    for key, name in _LIMITS.items():
        series = [
            Series(percentile.upper(), line_of(points, key, percentile), colour)
            for percentile, colour in (("p50", "c5"), ("p95", "c0"), ("p99", "c3"))
        ]
        charts.append(Chart(name, "against the load", x, latency_axis(), series, limit_of(slos, key)))
    return [figure(chart) for chart in charts]


def _attainments(points: Sequence[Mapping[str, Any]], slos: Mapping[str, Any]) -> list[Series]:
    series = [Series("all limits", line_of(points, "attainment"), "c2")]
    for (key, name), colour in zip(_LIMITS.items(), ("c0", "c3", "c1"), strict=True):
        if slos.get(key) is not None:
            line = line_of(points, f"{name.lower()}_attainment")
            series.append(Series(name, line, colour, is_dashed=True))
    return series


def _distributions(result: Mapping[str, Any]) -> list[str]:
    """The share of requests that took no longer, one line per point."""
    points, drawn = result["points"][:6], list[str]()
    names = {"ttft_seconds": "TTFT", "itl_seconds": "ITL", "e2e_seconds": "E2E"}
    for key, name in names.items():
        series = [
            Series(load_name(point), shares(point["curves"][key]), f"c{place}", has_marks=False)
            for place, point in enumerate(points)
        ]
        what = "gaps between events" if key == "itl_seconds" else "requests"
        chart = Chart(name, f"share of {what} that took no longer", latency_axis(), share_axis(), series)
        drawn.append(figure(chart))
    return drawn


def shares(quantiles: Sequence[float]) -> list[tuple[float, float]]:
    """A distribution's curve: value, share of values up to it."""
    return [(value, (place + 1) / len(quantiles)) for place, value in enumerate(quantiles)]


def _most_telling(result: Mapping[str, Any]) -> int:
    """The point whose timeline is open: the first that misses its goal, else the last."""
    goal = result["settings"]["attainment"]
    for place, point in enumerate(result["points"]):
        if (point["attainment"] or 0.0) < goal:
            return place
    return len(result["points"]) - 1


def figures_table(points: Sequence[Mapping[str, Any]]) -> str:
    """Every row of the terminal's table."""
    rows = [
        [title, *(show(value_at(point, path)) for point in points)]
        for title, path, show in ROWS
        if any(value_at(point, path) is not None for point in points)
    ]
    return html_table(["", *(load_name(point) for point in points)], rows)


def _tenants(points: Sequence[Mapping[str, Any]]) -> list[str]:
    if all(len(point["tenants"]) < 2 for point in points):
        return []
    rows = [
        [
            load_name(point),
            tenant["tenant"],
            number(tenant["weight"]),
            number(tenant["requests"]),
            percent(tenant["tokens_share"]),
            percent(tenant["attainment"]),
            seconds(tenant["ttft_seconds"]["p50"]),
            seconds(tenant["ttft_seconds"]["p99"]),
            seconds(tenant["tpot_seconds"]["p99"]),
        ]
        for point in points
        for tenant in point["tenants"][:50]
    ]
    head = ["load", "tenant", "weight", "requests", "tokens", "in limits", "TTFT P50", "TTFT P99", "TPOT P99"]
    return ["<h2>Tenants</h2>", html_table(head, rows)]


def _errors(points: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        [
            load_name(point),
            str(error["count"]),
            error["outcome"],
            str(error["status"] or ""),
            error["example"],
        ]
        for point in points
        for error in point["errors"]
    ]
    if not rows:
        return []
    head = ["load", "requests", "how", "status", "such as"]
    return ["<h2>What was not finished</h2>", html_table(head, rows, ["", "", "", "", "text"])]


def knobs(result: Mapping[str, Any]) -> str:
    """Everything that was set, of the client, the workers and the machine."""
    parts = [
        _knob_block("Client", result["settings"]),
        _knob_block("Machine of the client", result["machine"]),
    ]
    parts.append(_knob_block("Server", result["target"]))
    parts += [_knob_block(f"Worker {worker.get('url', '')}", worker) for worker in result["workers"]]
    return "".join(parts)


def _knob_block(name: str, values: Mapping[str, Any]) -> str:
    return details(name, f"<pre>{escape(json.dumps(values, indent=2))}</pre>")
