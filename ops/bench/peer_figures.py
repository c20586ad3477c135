"""What was measured, as figures: percentiles, medians over rounds, ratios to the best peer, a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway.services.percentile import percentile

Cell = dict[str, float]
"""Figures of one arm at one concurrency in one round."""
FIGURES: Final = (
    "tokens_per_second",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "itl_p50_ms",
    "itl_p99_ms",
    "tokens_per_event",
)


@dataclass(frozen=True)
class Timed:
    """One answer, in seconds on one clock: when it was asked, and when each event with text came."""

    asked: float
    events: tuple[float, ...]
    tokens: int


def cell_of(answers: Sequence[Timed]) -> Cell:
    """Figures of a cell. ITL is the time between two events; one that brings several tokens counts once."""
    gaps = [
        1e3 * (later - earlier)
        for answer in answers
        for earlier, later in zip(answer.events, answer.events[1:], strict=False)
    ]
    ttfts = [1e3 * (answer.events[0] - answer.asked) for answer in answers]
    seconds = max(answer.events[-1] for answer in answers) - min(answer.asked for answer in answers)
    tokens = sum(answer.tokens for answer in answers)
    return {
        "tokens_per_second": tokens / seconds,
        "ttft_p50_ms": percentile(ttfts, 50),
        "ttft_p99_ms": percentile(ttfts, 99),
        "itl_p50_ms": percentile(gaps, 50) if gaps else 0.0,
        "itl_p99_ms": percentile(gaps, 99) if gaps else 0.0,
        "tokens_per_event": tokens / sum(len(answer.events) for answer in answers),
    }


def medians(cells: Sequence[Cell]) -> Cell:
    """Of each figure over the rounds."""
    return {name: statistics.median(cell[name] for cell in cells) for name in cells[0]}


@dataclass(frozen=True)
class Ratio:
    """One of our arms against the best peer of a cell."""

    ours: str
    best: str
    ratio: float
    """Median over the rounds in which both ran, each against the same round's."""
    rounds: tuple[float, ...]


SAME_WORK: Final = ("cpu", "cores", "model", "requests")
"""What two reports must have in common for their rounds to be put together."""


def kept_rounds(
    report: Mapping[str, Any], machine: Mapping[str, Any]
) -> dict[str, dict[int, dict[int, Cell]]]:
    """A written report's cells by arm, concurrency and round. Raises ValueError if it is of other work."""
    for name in SAME_WORK:
        before, now = report["machine"][name], machine[name]
        if before != now:
            raise ValueError(f"{name} was {before} in it and is {now} now")
    return {
        arm: {int(c): {int(n): dict(cell) for n, cell in ran.items()} for c, ran in cells.items()}
        for arm, cells in report["rounds"].items()
    }


def ratio_to_best(
    rounds: Mapping[str, Mapping[int, Cell]], ours: str, peers: Mapping[str, Mapping[int, Cell]]
) -> Ratio | None:
    """Our tokens per second over the best peer's; ``rounds`` and ``peers``: arm to round to cell.

    The best peer is the one with the highest median. None: there is no peer, or no round of both.
    """
    ran = {name: cells for name, cells in peers.items() if cells}
    if not ran or not rounds.get(ours):
        return None
    rates = {name: medians(list(cells.values()))["tokens_per_second"] for name, cells in ran.items()}
    best = max(rates, key=lambda name: rates[name])
    mine = rounds[ours]
    ratios = tuple(
        mine[number]["tokens_per_second"] / ran[best][number]["tokens_per_second"]
        for number in sorted(mine.keys() & ran[best].keys())
    )
    return Ratio(ours, best, statistics.median(ratios), ratios) if ratios else None


def table(report: Mapping[str, Any]) -> list[str]:
    """The report's cells and ratios as lines of text."""
    lines: list[str] = []
    head = f"{'':16}{'tokens/s':>10}{'TTFT P50':>10}{'P99':>8}{'ITL P50':>10}{'P99':>8}{'tokens/event':>14}"
    for concurrency, arms in report["medians"].items():
        lines += ["", f"concurrency {concurrency} (times in ms)", head]
        for name, cell in arms.items():
            rate, *times, per_event = (cell[figure] for figure in FIGURES)
            ttft, ttft99, itl, itl99 = times
            lines.append(
                f"{name:16}{rate:10.1f}{ttft:10.1f}{ttft99:8.1f}{itl:10.2f}{itl99:8.1f}{per_event:14.2f}"
            )
        for ratio in report["ratios"].get(concurrency, []):
            goal = "" if ratio["goal"] is None else f", goal {ratio['goal']:g} times: {ratio['verdict']}"
            spread = f"{min(ratio['rounds']):.2f} to {max(ratio['rounds']):.2f}"
            lines.append(f"  {ratio['ours']} / {ratio['best']}: {ratio['ratio']:.2f} times ({spread}){goal}")
    if report["left_out"]:
        lines += ["", "left out:"]
        lines += [f"  {name}: {reason}" for name, reason in report["left_out"].items()]
    return lines
