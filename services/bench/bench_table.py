"""A benchmark's figures for people: a column per point, then tenants, errors, and whether to believe them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_NAME_WIDTH: Final = 30
Show = Callable[[Any], str]


def seconds(value: float | None) -> str:
    """``12.3 ms``, ``1.20 s``."""
    if value is None:
        return "-"
    return f"{value * 1e3:.1f} ms" if abs(value) < 1 else f"{value:.2f} s"


def limit(value: float) -> str:
    """``100 ms``, ``1 s``."""
    return f"{value:g} s" if value >= 1 else f"{1e3 * value:g} ms"


def percent(value: float | None) -> str:
    """Of a share."""
    return "-" if value is None else f"{100 * value:.3g} %" if value in (0.0, 1.0) else f"{100 * value:.1f} %"


def number(value: float | None) -> str:
    """Of a count or a rate."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


Row = tuple[str, tuple[str, ...], Show]
ROWS: Final[tuple[Row, ...]] = (
    ("requests", ("requests",), number),
    ("finished", ("finished",), number),
    ("refused", ("refused",), number),
    ("failed or broken", ("failures",), number),
    ("not ended in time", ("unfinished",), number),
    ("offered, requests/s", ("offered_per_second",), number),
    ("throughput, requests/s", ("requests_per_second",), number),
    ("throughput, tokens/s", ("tokens_per_second",), number),
    ("goodput, requests/s", ("goodput_per_second",), number),
    ("within all limits", ("attainment",), percent),
    ("TTFT, P50", ("ttft_seconds", "p50"), seconds),
    ("TTFT, P95", ("ttft_seconds", "p95"), seconds),
    ("TTFT, P99", ("ttft_seconds", "p99"), seconds),
    ("TPOT, P50", ("tpot_seconds", "p50"), seconds),
    ("TPOT, P95", ("tpot_seconds", "p95"), seconds),
    ("TPOT, P99", ("tpot_seconds", "p99"), seconds),
    ("ITL, P50", ("itl_seconds", "p50"), seconds),
    ("ITL, P95", ("itl_seconds", "p95"), seconds),
    ("ITL, P99", ("itl_seconds", "p99"), seconds),
    ("E2E, P50", ("e2e_seconds", "p50"), seconds),
    ("E2E, P95", ("e2e_seconds", "p95"), seconds),
    ("E2E, P99", ("e2e_seconds", "p99"), seconds),
    ("refused at the door, P99", ("refusal_seconds", "p99"), seconds),
    ("given up behind it, P99", ("given_up_seconds", "p99"), seconds),
    ("tokens in one event", ("tokens_per_event",), number),
    ("Jain index", ("jain_index",), number),
    ("client: sent late, P99", ("client", "late_seconds", "p99"), seconds),
    ("client: loop lag, P99", ("client", "loop_lag_seconds", "p99"), seconds),
    ("client: CPU, of a core", ("client", "cpu_share"), percent),
)
_TENANT_ROWS: Final[tuple[Row, ...]] = (
    ("requests", ("requests",), number),
    ("tokens, share", ("tokens_share",), percent),
    ("within all limits", ("attainment",), percent),
    ("TTFT, P50", ("ttft_seconds", "p50"), seconds),
    ("TTFT, P99", ("ttft_seconds", "p99"), seconds),
    ("TPOT, P99", ("tpot_seconds", "p99"), seconds),
)
_MOST_TENANTS: Final = 20
"""Tables longer than this help nobody; the JSON has all."""


def value_at(figures: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """A figure by its place; None where it is not."""
    if path == ("failures",):
        return figures.get("failed", 0) + figures.get("broken", 0)
    value: Any = figures
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # JSON
    return value  # pyright: ignore[reportUnknownVariableType]  # JSON


def load_of(point: Mapping[str, Any]) -> float:
    """A point's rate, or its clients."""
    return float(point["rate"] if point["concurrency"] is None else point["concurrency"])


def load_name(point: Mapping[str, Any]) -> str:
    """The head of a point's column."""
    if point["concurrency"] is not None:
        return f"{point['concurrency']} clients"
    return f"{point['rate']:g}/s"


def table(result: Mapping[str, Any]) -> list[str]:
    """The lines of the table, of what ``headway bench --json`` writes."""
    points = result["points"]
    lines = heading(result)
    if points:
        width = max(12, *(len(load_name(point)) + 2 for point in points))
        lines += ["", f"{'':{_NAME_WIDTH}}" + "".join(f"{load_name(point):>{width}}" for point in points)]
        lines += [line for row in ROWS if (line := _line(row, points, width)) is not None]
        lines += _tenants(points, width)
        lines += _errors(points)
    knee = result.get("knee")
    if knee:
        lines += ["", knee_sentence(knee, result["slos"])]
    return lines + verdict(result)


def heading(result: Mapping[str, Any]) -> list[str]:
    """What was measured, in two lines, and a third for each of Headway's workers that was asked."""
    settings, target, machine = result["settings"], result["target"], result["machine"]
    what = f"{target['model']} at {settings['url']}"
    work = result["work"]
    return [
        what + (f" ({target['server']})" if target["server"] else ""),
        f"{work['summary']}; {settings['duration']:g} s each after {settings['warmup']:g} s of warm-up; "
        f"client on {machine['cores']} cores ({machine['processor']})",
        *(worker_words(worker) for worker in result["workers"]),
    ]


def worker_words(worker: Mapping[str, Any]) -> str:
    """The knobs of a worker that speed depends on most; the JSON has all."""
    settings = worker.get("settings", {})
    known = (
        ("policy {}", settings.get("policy")),
        ("at most {} sequences", settings.get("max_sequences")),
        ("{} tokens a step", settings.get("max_batch_tokens")),
        ("blocks of {}", settings.get("block_size")),
        ("{} KV blocks", worker.get("kv_blocks")),
        ("kernels {}", worker.get("kernels")),
    )
    return "worker: " + ", ".join(words.format(value) for words, value in known if value is not None)


def knee_sentence(knee: Mapping[str, Any], slos: Mapping[str, Any]) -> str:
    """Goodput in DistServe's words."""
    limits = limits_sentence(slos)
    goal = f"{100 * knee['attainment_goal']:g} % of the requests {limits}"
    served, failed = knee["served_rate"], knee["failed_rate"]
    if served is None:
        return f"knee: below {failed:g}/s, the lowest rate that was tried ({goal})"
    if failed is None:
        return f"knee: above {served:g}/s, the highest rate that was tried ({goal})"
    return f"knee: {served:g} requests/s; at {failed:g}/s no longer {goal}"


def limits_sentence(slos: Mapping[str, Any]) -> str:
    """The limits in words."""
    named = (("TTFT", "ttft_seconds"), ("TPOT", "tpot_seconds"), ("E2E", "e2e_seconds"))
    told = [f"{name} ≤ {limit(slos[key])}" for name, key in named if slos.get(key) is not None]
    return "within " + ", ".join(told) if told else "finished"


def verdict(result: Mapping[str, Any]) -> list[str]:
    """What speaks against the figures."""
    lines = [f"note: {note}" for note in result["notes"]]
    if result["interrupted"]:
        lines.append("INTERRUPTED: the last point was not measured to its end")
    if not result["valid"]:
        lines.append(
            "INVALID: not the server's figures, since the client, or its machine, was the bottleneck:"
        )
        lines += [
            f"  {load_name(point)}: {complaint}"
            for point in result["points"]
            for complaint in point["client"]["complaints"]
        ]
    return ["", *lines] if lines else []


def _line(row: Row, columns: Sequence[Mapping[str, Any]], width: int) -> str | None:
    title, path, show = row
    values = [value_at(column, path) for column in columns]
    if all(value is None for value in values):
        return None
    return f"{title:{_NAME_WIDTH}}" + "".join(f"{show(value):>{width}}" for value in values)


def _tenants(points: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    names = list(dict.fromkeys(tenant["tenant"] for point in points for tenant in point["tenants"]))
    if len(names) < 2:
        return []
    lines: list[str] = []
    for name in names[:_MOST_TENANTS]:
        empty: dict[str, Any] = {}
        columns = [
            next((tenant for tenant in point["tenants"] if tenant["tenant"] == name), empty)
            for point in points
        ]
        weight = next(column["weight"] for column in columns if column)
        lines += ["", f"tenant {name}, weight {weight:g}"]
        lines += [line for row in _TENANT_ROWS if (line := _line(row, columns, width)) is not None]
    if len(names) > _MOST_TENANTS:
        lines += ["", f"and {len(names) - _MOST_TENANTS} more tenants: --json has all"]
    return lines


def _errors(points: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        f"  {load_name(point)}: {error['count']} {error['outcome']}"
        + (f" with {error['status']}" if error["status"] else "")
        + f", such as: {error['example']}"
        for point in points
        for error in point["errors"]
    ]
    return ["", "what was not finished", *lines] if lines else []
