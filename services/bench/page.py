"""The report's frame: everything in one file, nothing fetched, light and dark, from phone to wide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final

_STYLE: Final = Path(__file__).with_name("report.css")


def page(title: str, parts: Iterable[str]) -> str:
    """An HTML document of these parts, with its style in it."""
    style = _STYLE.read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def tiles(pairs: Iterable[tuple[str, str]]) -> str:
    """A few figures that one reads first: value and what it is."""
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>'
            for value, what in pairs
        )
        + "</div>"
    )


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], classes: Sequence[str] = ()) -> str:
    """A table; ``classes``: of each column's cells."""
    heads = "".join(
        f"<th{_class(classes[place] if place < len(classes) else '')}>{escape(cell)}</th>"
        for place, cell in enumerate(head)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_class(classes[place] if place < len(classes) else '')}>{escape(cell)}</td>"
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def details(summary: str, inside: str, *, is_open: bool = False) -> str:
    """What one may open."""
    return f"<details{' open' if is_open else ''}><summary>{escape(summary)}</summary>{inside}</details>"


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
