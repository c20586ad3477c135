"""The figures of the readers' benchmark: how late tokens were, what a stream takes, and how it is shown."""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from typing import Any, Final

from reader_watchers import Seen

from headway.services.percentile import percentile

NOTHING: Final = float("nan")
MOST_PROBLEMS: Final = 5
"""That are shown."""


@dataclass(frozen=True)
class Window:
    """A time in which all streams were open."""

    name: str
    since: float
    until: float
    cpu: dict[str, float]
    """Of one core, by process."""


def latencies(answers: list[dict[str, Any]], written: dict[str, list[float]]) -> list[tuple[float, float]]:
    """When each token was written and how much later it was read; of the jobs whose writes can be told apart.

    A job's n-th write holds its n-th token, unless a worker put two of them into one write: then there are
    fewer writes than tokens, and the job is left out. The end is written with the last token or by itself.
    """
    found: list[tuple[float, float]] = []
    for answer in answers:
        times, writes = answer["times"], written.get(answer["job"].rpartition(":")[2], [])
        if len(writes) - len(times) in {0, 1}:
            found += [(at, came - at) for at, came in zip(writes, times, strict=False)]
    return found


def memory(empty: int, full: int, streams: int) -> dict[str, Any]:
    """The gateway's memory, and one stream's part in it."""
    return {
        "gateway_mib": {"empty": round(empty / 2**20, 1), "full": round(full / 2**20, 1)},
        "kib_per_stream": round((full - empty) / streams / 1024, 1),
    }


def figures(
    options: argparse.Namespace,
    answers: list[dict[str, Any]],
    found: list[tuple[float, float]],
    windows: tuple[Window, ...],
    seen: Seen,
) -> dict[str, Any]:
    """What is reported."""
    problems = [answer["problem"] for answer in answers if answer["problem"]]
    first_ends = min((answer["times"][-1] for answer in answers if answer["times"]), default=NOTHING)
    return {
        "streams": len(answers),
        "whole": len(answers) - len(problems),
        "problems": (problems + seen.problems)[:MOST_PROBLEMS],
        "tokens": sum(len(answer["times"]) for answer in answers),
        "timed_tokens": len(found),
        "kib_read": round(sum(answer["sizes"] for answer in answers) / 1024),
        "windows": {window.name: window_figures(window, found) for window in windows},
        "ended_inside": first_ends < windows[-1].until,
        "scrape_ms": [round(1e3 * seconds, 1) for seconds in seen.scrapes],
        "scrape_kib": round(seen.scrape_bytes / 1024, 1),
        "open_streams": seen.open_streams,
        "console": {
            "figures": len(seen.figures),
            "longest_gap_seconds": round(
                max(
                    (after - before for before, after in zip(seen.figures, seen.figures[1:], strict=False)),
                    default=0.0,
                ),
                2,
            ),
            "steps": seen.steps,
        },
        "options": {name: value for name, value in vars(options).items() if name != "json"},
    }


def window_figures(window: Window, found: list[tuple[float, float]]) -> dict[str, Any]:
    """Rate, added latency and CPU of one window."""
    late = [seconds for at, seconds in found if window.since <= at <= window.until]
    seconds = window.until - window.since
    return {
        "tokens_per_second": round(len(late) / seconds),
        "added_ms": {
            "mean": round(1e3 * statistics.fmean(late), 1) if late else NOTHING,
            **{
                f"P{percent}": round(1e3 * percentile(late or [NOTHING], percent), 1)
                for percent in (50, 90, 99)
            },
            "max": round(1e3 * max(late, default=NOTHING), 1),
        },
        "cores": {name: round(share, 2) for name, share in window.cpu.items()},
        "gateway_us_per_token": round(1e6 * window.cpu["gateway"] * seconds / max(1, len(late))),
    }


def show(report: dict[str, Any]) -> None:
    """Print the figures."""
    print(f"{report['whole']} of {report['streams']} streams whole, {report['tokens']} tokens")
    if report["ended_inside"]:
        print("    streams ended inside the windows: give them more --tokens")
    for problem in report["problems"]:
        print(f"    {problem}")
    for name, window in report["windows"].items():
        added = ", ".join(f"{key} {value} ms" for key, value in window["added_ms"].items())
        print(f"{name}: {window['tokens_per_second']} tokens/s; added latency {added}")
        cores = ", ".join(f"{part} {share}" for part, share in window["cores"].items())
        print(f"    {window['gateway_us_per_token']} µs of the gateway's CPU per token; cores: {cores}")
    sizes = report["gateway_mib"]
    print(
        f"memory: {sizes['empty']} MiB with nobody, {sizes['full']} MiB with all: "
        f"{report['kib_per_stream']} KiB per stream"
    )
    console = report["console"]
    print(
        f"/metrics: {report['scrape_kib']} KiB in {max(report['scrape_ms'], default=NOTHING)} ms at most; "
        f"console: {console['figures']} looks, at most {console['longest_gap_seconds']} s apart, "
        f"{console['steps']} views of steps"
    )
    held = report["stalled"]
    print(
        f"{held['readers']} stalled readers of {held['answer'] >> 10} KiB each: the gateway holds "
        f"{held['gateway'] >> 10} KiB for each, its sockets {held['kernel'] >> 10} KiB; "
        f"{held['readers'] - len(held['problems'])} came whole afterwards"
    )
