"""The figures of the overload, and what they say: goodput over time, refusals, memory, the client itself."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway.services.percentile import percentile

WINDOW_SECONDS: Final = 10.0
LEAST_GOODPUT: Final = 0.9
"""Of the peak, over the whole time."""
LONGEST_REFUSAL_SECONDS: Final = 0.05
"""At the 99th percentile."""
MOST_GROWTH: Final = 1.05
"""Of a process's memory in the last minute, as a multiple of that in the second one."""
KEPT_BYTES: Final = 8192
"""What the queue's server may keep of each accepted job for its promise: the stream for five minutes (4 kB at
least), body, record and answer for an hour. Of refused ones it keeps nothing."""
MINUTE: Final = 60.0
LEAST_MINUTES: Final = 3
"""For a second and a last minute that lie apart: else their comparison says nothing."""
REFUSALS: Final = (429, 503)
ACCEPTED: Final = 200


@dataclass(frozen=True)
class Limits:
    """What a request has to keep, in seconds."""

    ttft: float | None
    tpot: float
    deadline: float

    def options(self) -> list[str]:
        """As ``headway bench`` takes them."""
        limits = ("--slo-ttft", self.ttft), ("--slo-tpot", self.tpot), ("--slo-e2e", self.deadline)
        shown = [(name, "none" if seconds is None else f"{1e3 * seconds:g}ms") for name, seconds in limits]
        told = [part for pair in shown for part in pair]
        return [*told, "--deadline", f"{1e3 * self.deadline:g}ms"]


@dataclass(frozen=True)
class Peak:
    """The most goodput of the search, and at which rate it was found."""

    rate: float
    goodput: float


@dataclass(frozen=True)
class MemorySeries:
    """By process: when (Unix seconds), resident bytes, CPU seconds so far."""

    samples: dict[str, list[tuple[float, int, float]]]

    def shown(self, accepted_per_second: float) -> dict[str, Any]:
        """MB in the second and the last minute (medians), the growth, and the cores that it used.

        Growth of the queue's server is without what it keeps of jobs by its promise.
        """
        kept = {"server": KEPT_BYTES * accepted_per_second}
        return {name: _memory(series, kept.get(name, 0.0)) for name, series in self.samples.items() if series}


def peak_of(sweep: Mapping[str, Any]) -> Peak:
    """Of a result of ``headway bench``; raises ValueError where nothing was good."""
    best = max(sweep["points"], key=lambda point: point["goodput_per_second"] or 0.0)
    if not best["goodput_per_second"]:
        raise ValueError("no request was within the limits at any rate: give wider limits, or a lower --rate")
    return Peak(best["rate"], best["goodput_per_second"])


def figures_of(
    sweep: Mapping[str, Any], overload: Mapping[str, Any], memory: MemorySeries, limits: Limits
) -> dict[str, Any]:
    """Everything that is reported."""
    peak, (point,) = peak_of(sweep), overload["points"]
    rows = due_rows(overload)
    refusals = sorted(row["ended"] - row["due"] for row in rows if row["status"] in REFUSALS)
    start, end = point["window"]
    accepted = sum(row["status"] == ACCEPTED for row in rows)
    shown = memory.shown(accepted / max(1e-9, end - start))
    found: dict[str, Any] = {
        "peak": {"rate": peak.rate, "goodput": peak.goodput},
        "search": [
            {name: each[name] for name in ("rate", "goodput_per_second", "attainment", "requests_per_second")}
            for each in sweep["points"]
        ],
        "offered": point["offered_per_second"],
        "goodput": point["goodput_per_second"],
        "goodput_of_peak": point["goodput_per_second"] / peak.goodput,
        "windows": windows(rows, point["window"], limits, peak.goodput),
        "requests": len(rows),
        "outcomes": outcomes(rows),
        "refusals": len(refusals),
        "refusal_seconds": {
            f"p{percent}": percentile(refusals, percent) if refusals else None for percent in (50, 99)
        },
        "ttft_p99": point["ttft_seconds"]["p99"],
        "e2e_p99": point["e2e_seconds"]["p99"],
        "memory": shown,
        "client": point["client"],
        "limits": {"ttft": limits.ttft, "tpot": limits.tpot, "deadline": limits.deadline},
    }
    found["missed"] = missed(found)
    found["memory_not_judged"] = [
        name for name in memory.samples if name not in shown or shown[name]["growth"] is None
    ]
    is_valid = sweep["valid"] and overload["valid"]
    found["verdict"] = "invalid" if not is_valid else "missed" if found["missed"] else "held"
    return found


def due_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The requests that were due in the measured time, by the names of their fields."""
    (point,) = result["points"]
    start, end = point["window"]
    rows = [dict(zip(result["request_fields"], row, strict=True)) for row in point["requests_sent"]]
    return [row for row in rows if start <= row["due"] < end]


def is_good(row: Mapping[str, Any], limits: Limits) -> bool:
    """Whether it was answered in whole and in time."""
    if row["outcome"] != "finished" or row["first"] is None:
        return False
    gap = (row["last"] - row["first"]) / max(1, row["tokens"] - 1)
    return bool(
        (limits.ttft is None or row["first"] - row["due"] <= limits.ttft)
        and gap <= limits.tpot
        and row["ended"] - row["due"] <= limits.deadline
    )


def windows(
    rows: Iterable[Mapping[str, Any]], span: Sequence[float], limits: Limits, peak: float
) -> list[float]:
    """Goodput of what was due in each ten seconds, as a part of the peak; a piece at the end is left out."""
    start, end = span
    good = [0] * int((end - start) / WINDOW_SECONDS + 1e-6)
    for row in rows:
        place = int((row["due"] - start) / WINDOW_SECONDS)
        if place < len(good) and is_good(row, limits):
            good[place] += 1
    return [round(count / WINDOW_SECONDS / peak, 3) for count in good]


def outcomes(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many ended how: refusals by their status."""
    names = Counter(
        f"{row['outcome']} {row['status']}" if row["outcome"] == "refused" else str(row["outcome"])
        for row in rows
    )
    return dict(names.most_common())


def missed(found: Mapping[str, Any]) -> list[str]:
    """What was not held, in words."""
    told: list[str] = []
    if found["goodput_of_peak"] < LEAST_GOODPUT:
        told.append(f"goodput fell to {100 * found['goodput_of_peak']:.0f} % of its peak")
    slow = found["refusal_seconds"]["p99"]
    if slow is not None and slow > LONGEST_REFUSAL_SECONDS:
        told.append(f"refusals took {1e3 * slow:.0f} ms at P99")
    told += [
        f"the memory of {name} grew by {100 * (of['growth'] - 1):.0f} %"
        for name, of in found["memory"].items()
        if of["growth"] is not None and of["growth"] > MOST_GROWTH
    ]
    return told


def lines_of(figures: Mapping[str, Any]) -> list[str]:
    """For people."""
    client, refusal = figures["client"], figures["refusal_seconds"]
    shares = figures["windows"]
    lines = [
        f"peak of goodput {figures['peak']['goodput']:.2f}/s at {figures['peak']['rate']:g}/s",
        f"overload {figures['offered']:.1f}/s: goodput {figures['goodput']:.2f}/s, "
        f"{100 * figures['goodput_of_peak']:.0f} % of the peak",
    ]
    if shares:
        lines.append(
            f"  in windows of {WINDOW_SECONDS:g} s: {min(shares):.2f} to {max(shares):.2f}, "
            f"median {statistics.median(shares):.2f}: {' '.join(f'{share:.2f}' for share in shares)}"
        )
    lines.append(f"  {', '.join(f'{count} {name}' for name, count in figures['outcomes'].items())}")
    lines.append(
        f"  TTFT P99 {_ms(figures['ttft_p99'])}, whole answers P99 {_ms(figures['e2e_p99'])}; "
        f"refusals P50 {_ms(refusal['p50'])}, P99 {_ms(refusal['p99'])}"
    )
    for name, of in figures["memory"].items():
        grown = "" if of["growth"] is None else f", {of['growth']:.3f} of the second minute's"
        if of["kept_mb"]:
            grown += f" without {of['kept_mb']:.1f} MB that it keeps of {KEPT_BYTES:,} B a job"
        lines.append(f"  {name}: {of['last_mb']:.1f} MB{grown}; {100 * of['cores']:.0f} % of a core")
    lines.append(
        f"  client: {100 * client['cpu_share']:.0f} % of a core, sent late by "
        f"{_ms(client['late_seconds']['p99'])} at P99"
    )
    lines += [f"  INVALID: {complaint}" for complaint in client["complaints"]]
    held = "every limit"
    if names := figures["memory_not_judged"]:
        lines.append(
            f"  NOT JUDGED: whether the memory of {', '.join(names)} grows; that takes "
            f"{LEAST_MINUTES} minutes of overload (--seconds {LEAST_MINUTES * MINUTE:.0f})"
        )
        held += " but memory, which was not judged"
    return [*lines, f"{figures['verdict']}: {', '.join(figures['missed']) or held}"]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.0f} ms"


def _memory(series: Sequence[tuple[float, int, float]], kept_per_second: float) -> dict[str, Any]:
    began, ended = series[0][0], series[-1][0]
    second = [rss for at, rss, _ in series if began + MINUTE <= at < began + 2 * MINUTE]
    last = [rss for at, rss, _ in series if at >= ended - MINUTE]
    is_long = ended - began >= LEAST_MINUTES * MINUTE
    kept = kept_per_second * (ended - began - 2 * MINUTE)
    return {
        "last_mb": round(statistics.median(last) / 1e6, 2),
        "most_mb": round(max(rss for _, rss, _ in series) / 1e6, 2),
        "second_minute_mb": round(statistics.median(second) / 1e6, 2) if is_long else None,
        "kept_mb": round(kept / 1e6, 2) if is_long else None,
        "growth": round((statistics.median(last) - kept) / statistics.median(second), 4) if is_long else None,
        "cores": round((series[-1][2] - series[0][2]) / max(1e-9, ended - began), 3),
    }
