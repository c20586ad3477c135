"""The figures of the overload, and what they say: goodput over time, refusals, memory, the client itself."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway.services.bench.answer import Answer, Outcome
from headway.services.bench.figures import BEHIND_IT, is_good, refusal_times
from headway.services.bench.result import read_row
from headway.services.bench.settings import Slos
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
least), body, record and answer for an hour. Also of one that a worker gave up; of those refused at the door
nothing."""
MINUTE: Final = 60.0
LEAST_MINUTES: Final = 3
"""For a second and a last minute that lie apart: else their comparison says nothing."""
ACCEPTED: Final = 200


@dataclass(frozen=True)
class Limits:
    """What a request has to keep, in seconds."""

    ttft: float | None
    tpot: float
    deadline: float

    @property
    def slos(self) -> Slos:
        """As ``headway bench`` judges by them."""
        return Slos(self.ttft, self.tpot, self.deadline)

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
    answers = due_answers(overload)
    start, end = point["window"]
    accepted = sum(answer.status == ACCEPTED or answer.status in BEHIND_IT for answer in answers)
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
        "windows": windows(answers, point["window"], limits.slos, peak.goodput),
        "requests": len(answers),
        "outcomes": outcomes(answers),
        **refusals(answers),
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


def due_answers(result: Mapping[str, Any]) -> list[Answer]:
    """The requests that were due in the measured time."""
    (point,) = result["points"]
    start, end = point["window"]
    answers = (read_row(row, result["request_fields"]) for row in point["requests_sent"])
    return [answer for answer in answers if start <= answer.planned.seconds < end]


def windows(answers: Iterable[Answer], span: Sequence[float], slos: Slos, peak: float) -> list[float]:
    """Goodput of what was due in each ten seconds, as a part of the peak; a piece at the end is left out."""
    start, end = span
    good = [0] * int((end - start) / WINDOW_SECONDS + 1e-6)
    for answer in answers:
        place = int((answer.planned.seconds - start) / WINDOW_SECONDS)
        if place < len(good) and is_good(answer, slos):
            good[place] += 1
    return [round(count / WINDOW_SECONDS / peak, 3) for count in good]


def outcomes(answers: Iterable[Answer]) -> dict[str, int]:
    """How many ended how: refusals by their status."""
    names = Counter(
        f"refused {answer.status}" if answer.outcome is Outcome.REFUSED else str(answer.outcome)
        for answer in answers
    )
    return dict(names.most_common())


def refusals(answers: Sequence[Answer]) -> dict[str, Any]:
    """How many were refused at the door, how many given up behind it, and how long either took to be told."""
    times = refusal_times(answers)
    door, behind = times["refusal_seconds"], times["given_up_seconds"]
    return {
        "refusals": len(door),
        "refusal_seconds": _percentiles(door),
        "given_up": len(behind),
        "given_up_seconds": _percentiles(behind),
        "both_seconds": _percentiles(door + behind),
    }


def _percentiles(seconds: Sequence[float]) -> dict[str, float | None]:
    return {f"p{percent}": percentile(seconds, percent) if seconds else None for percent in (50, 99)}


def missed(found: Mapping[str, Any]) -> list[str]:
    """What was not held, in words."""
    told: list[str] = []
    if found["goodput_of_peak"] < LEAST_GOODPUT:
        told.append(f"goodput fell to {100 * found['goodput_of_peak']:.0f} % of its peak")
    slow = found["refusal_seconds"]["p99"]
    if slow is not None and slow > LONGEST_REFUSAL_SECONDS:
        told.append(f"refusals at the door took {1e3 * slow:.0f} ms at P99")
    told += [
        f"the memory of {name} grew by {100 * (of['growth'] - 1):.0f} %"
        for name, of in found["memory"].items()
        if of["growth"] is not None and of["growth"] > MOST_GROWTH
    ]
    return told


def lines_of(figures: Mapping[str, Any]) -> list[str]:
    """For people."""
    client, shares = figures["client"], figures["windows"]
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
    lines.append(f"  TTFT P99 {_ms(figures['ttft_p99'])}, whole answers P99 {_ms(figures['e2e_p99'])}")
    lines += [
        f"  {name}: {figures[count]}, told after {_ms(times['p50'])} (P50), {_ms(times['p99'])} (P99)"
        for name, count, times in (
            ("refused at the door (429, 503)", "refusals", figures["refusal_seconds"]),
            ("given up by the worker (504)", "given_up", figures["given_up_seconds"]),
        )
    ]
    if figures["given_up"]:
        lines.append(f"  both of them together: {_ms(figures['both_seconds']['p99'])} (P99)")
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
