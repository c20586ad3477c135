"""Tables for people: a heading above each column, and no wider than the terminal where that can be."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_GAP: Final = "  "
_READABLE: Final = 20
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
    cells = [[column.heading for column in columns], *([cell or "-" for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    kept = list(range(len(columns)))
    if width is not None:
        kept, widths = _fitting(columns, widths, width)
    return [_line(columns, kept, widths, row) for row in cells]


def _fitting(columns: Sequence[Column], widths: Sequence[int], width: int) -> tuple[list[int], list[int]]:
    """The columns that stay, and their widths. Columns go only where names would get too short to read."""
    kept = list(range(len(columns)))
    leaving = sorted((at for at in kept if columns[at].may_go), key=lambda at: columns[at].may_go)
    while leaving and _total(kept, _shrunk(columns, kept, widths, width, _READABLE)) > width:
        kept.remove(leaving.pop())
    return kept, _shrunk(columns, kept, widths, width, _NARROWEST)


def _shrunk(
    columns: Sequence[Column], kept: Sequence[int], widths: Sequence[int], width: int, narrowest: int
) -> list[int]:
    """Widths with the widest names shortened until the line fits, or none may be shorter."""
    found = list(widths)
    least = {at: max(narrowest, len(columns[at].heading)) for at in kept if columns[at].may_shrink}
    while _total(kept, found) > width:
        wide = [at for at, fewest in least.items() if found[at] > fewest]
        if not wide:
            break
        found[max(wide, key=lambda at: found[at])] -= 1
    return found


def _total(kept: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[at] + len(_GAP) for at in kept) - len(_GAP)


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
