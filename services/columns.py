"""Tables for people: a heading above each column, and no wider than the terminal where that can be."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_GAP: Final = "  "
_NARROWEST: Final = 6


@dataclass(frozen=True, slots=True)
class Column:
    """How one column gives way on a narrow terminal; by default not at all, so that it can be copied."""

    heading: str
    is_number: bool = False
    may_shrink: bool = False
    """Cells lose their middle."""
    may_go: int = 0
    """The column with the largest goes first; 0 stays."""


def terminal_width() -> int | None:
    """Characters a line may have; None where nobody looks: in a pipe or a file."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return None


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """The heading and a line for each row, cells aligned. Empty cells show as ``-``."""
    kept = list(range(len(columns)))
    cells = [[column.heading for column in columns], *([cell or "-" for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    if width is not None:
        _fit(columns, kept, widths, width)
    return [_line(columns, kept, widths, row) for row in cells]


def _fit(columns: Sequence[Column], kept: list[int], widths: list[int], width: int) -> None:
    """Make the widest columns that may shrink narrower; where that is not enough, leave columns out."""

    def excess() -> int:
        return sum(widths[at] + len(_GAP) for at in kept) - len(_GAP) - width

    while excess() > 0:
        widest = max((at for at in kept if columns[at].may_shrink), key=lambda at: widths[at], default=None)
        least = None if widest is None else max(_NARROWEST, len(columns[widest].heading))
        if widest is not None and least is not None and widths[widest] > least:
            widths[widest] -= 1
            continue
        leaving = max(
            (at for at in kept if columns[at].may_go), key=lambda at: columns[at].may_go, default=None
        )
        if leaving is None:
            return
        kept.remove(leaving)


def _line(columns: Sequence[Column], kept: Sequence[int], widths: Sequence[int], row: Sequence[str]) -> str:
    parts: list[str] = []
    for at in kept:
        cell = shortened(row[at], widths[at])
        parts.append(cell.rjust(widths[at]) if columns[at].is_number else cell.ljust(widths[at]))
    return _GAP.join(parts).rstrip()


def shortened(text: str, width: int) -> str:
    """The text in ``width`` characters, without its middle if it is longer: names differ at their ends."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
