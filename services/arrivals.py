"""When requests come and how long they are: a recorded trace, a Poisson process, bursts, or on and off.

Everything is drawn from the random generator that is passed in: the same seed gives the same arrivals, and
every policy that is compared sees the same ones.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

from headway.services.errors import UsageError

_TIME_COLUMNS: Final = ("TIMESTAMP", "Timestamp")
_PROMPT_COLUMNS: Final = ("ContextTokens", "Request tokens")
_ANSWER_COLUMNS: Final = ("GeneratedTokens", "Response tokens")
"""Columns of the Azure LLM inference traces (Splitwise, ISCA 2024), then of BurstGPT (arXiv 2401.17644)."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """One request's tokens."""

    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request as it comes in."""

    seconds: float
    lengths: Lengths


DrawLengths = Callable[[Random], Lengths]


def fitting_scale(rows: Sequence[Lengths], context_tokens: int, *, share: float = 1.0) -> float:
    """By how much to shorten all lengths so that this share of them fits the context; 1 where they do."""
    totals = sorted(row.prompt_tokens + row.answer_tokens for row in rows)
    return min(1.0, context_tokens / totals[min(len(totals) - 1, int(len(totals) * share))])


def scaled(lengths: Lengths, scale: float) -> Lengths:
    """So many times as long; a prompt and an answer have a token at least."""
    prompt, answer = (
        max(1, round(scale * tokens)) for tokens in (lengths.prompt_tokens, lengths.answer_tokens)
    )
    return Lengths(prompt, answer)


def read_trace(path: Path) -> tuple[Arrival, ...]:
    """The rows of a trace CSV by time, the first at 0 seconds; raises UsageError for another form."""
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            columns = [_column(path, reader.fieldnames, names) for names in _COLUMN_SETS]
            rows = [_read_row(path, number, row, columns) for number, row in enumerate(reader, start=2)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"cannot read the trace {path}: {error}") from None
    # BurstGPT logs failed requests with an empty answer: nothing was computed for them.
    rows = sorted((row for row in rows if row.lengths.answer_tokens > 0), key=lambda row: row.seconds)
    if not rows:
        raise UsageError(f"the trace {path} holds no request")
    start = rows[0].seconds
    return tuple(Arrival(row.seconds - start, row.lengths) for row in rows)


def replay(trace: Sequence[Arrival], rate_scale: float, duration: float | None) -> Iterator[Arrival]:
    """The trace ``rate_scale`` times as fast, cut after ``duration`` (in simulated seconds)."""
    for row in trace:
        seconds = row.seconds / rate_scale
        if duration is not None and seconds > duration:
            return
        yield Arrival(seconds, row.lengths)


def poisson(rate: float, duration: float, draw: DrawLengths, random: Random) -> Iterator[Arrival]:
    """Independent arrivals, ``rate`` a second."""
    return burst(rate, duration, 1.0, draw, random)


def burst(
    rate: float, duration: float, variation: float, draw: DrawLengths, random: Random
) -> Iterator[Arrival]:
    """Gamma gaps of mean 1 / rate and this coefficient of variation: 1 is Poisson, 3 to 5 are bursts."""
    shape = 1 / variation**2
    seconds = 0.0
    while (seconds := seconds + random.gammavariate(shape, 1 / (rate * shape))) <= duration:
        yield Arrival(seconds, draw(random))


def on_off(
    rate: float, duration: float, periods: tuple[float, float], draw: DrawLengths, random: Random
) -> Iterator[Arrival]:
    """``rate`` a second over all; independent arrivals, only in the first of each ``(on, off)`` seconds."""
    on_seconds, off_seconds = periods
    share = on_seconds / (on_seconds + off_seconds)
    for arrival in poisson(rate / share, duration * share, draw, random):
        whole, rest = divmod(arrival.seconds, on_seconds)
        yield Arrival(whole * (on_seconds + off_seconds) + rest, arrival.lengths)


def lengths_of(trace: Sequence[Arrival]) -> DrawLengths:
    """Draws prompt and answer length together, from one row of a trace."""
    return lambda random: random.choice(trace).lengths


def lognormal_lengths(prompt_tokens: float, answer_tokens: float, spread: float = 1.0) -> DrawLengths:
    """Draws log-normal lengths with these medians; spread 1 is about what chat traces show, 0 is constant."""

    def draw(random: Random) -> Lengths:
        prompt, answer = (
            max(1, round(median * random.lognormvariate(0, spread)))
            for median in (prompt_tokens, answer_tokens)
        )
        return Lengths(prompt, answer)

    return draw


_COLUMN_SETS: Final = (_TIME_COLUMNS, _PROMPT_COLUMNS, _ANSWER_COLUMNS)


def _column(path: Path, found: Sequence[str] | None, names: tuple[str, ...]) -> str:
    for name in names:
        if name in (found or ()):
            return name
    raise UsageError(
        f"the trace {path} has no column {names[0]}",
        hint="a CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens",
    )


def _read_row(path: Path, number: int, row: dict[str, str], columns: list[str]) -> Arrival:
    try:
        seconds, prompt, answer = (row[column] for column in columns)
        arrival = Arrival(_seconds(seconds), Lengths(int(prompt), int(answer)))
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{path}, line {number}: {error}", hint="a time and two whole numbers of tokens"
        ) from None
    if not math.isfinite(arrival.seconds):
        raise UsageError(f"{path}, line {number}: {arrival.seconds} is no time")
    if arrival.lengths.prompt_tokens < 1 or arrival.lengths.answer_tokens < 0:
        raise UsageError(f"{path}, line {number}: a prompt has at least one token, an answer none or more")
    return arrival


def _seconds(text: str) -> float:
    """A time as a number of seconds, or as a date."""
    try:
        return float(text)
    except ValueError:
        date = datetime.fromisoformat(text)
        # Without a zone it is read as UTC: in local time an hour would be missing once a year.
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
