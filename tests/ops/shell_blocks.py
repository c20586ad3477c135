"""The commands that a page tells its readers to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FENCE: Final = re.compile(r"^ *```")
_SUBSTITUTION: Final = re.compile(r"\$\((.*)\)")
_PROMPT: Final = re.compile(r"^\$ ")


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a page, its words as a shell would split them."""

    page: str
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


def commands_of(page: Path, program: str) -> Iterator[Command]:
    """Those in indented or fenced blocks whose first word is the program; variables are left as they are."""
    lines = _block_lines(page.read_text(encoding="utf-8"))
    while lines:
        number, text = lines.pop(0)
        if not re.match(rf"(\w+=\$\()?(\S*/)?{program}(\s|$)", text):
            continue
        words = _words(text)
        while words is None and lines:
            text += "\n" + lines.pop(0)[1]
            words = _words(text)
        assert words is not None, f"{page.name}:{number}: a quotation that does not end"
        for part in _with_substitutions(text):
            yield Command(page.name, number, tuple(_words(part) or ()))


def _block_lines(text: str) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    is_fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            is_fenced = not is_fenced
        elif is_fenced or line.startswith("    "):
            found.append((number, _PROMPT.sub("", line.strip())))
    return found


def _with_substitutions(text: str) -> list[str]:
    """What stands inside ``$(…)`` is a command too, its output a word of the other; an assignment is none."""
    found = _SUBSTITUTION.search(text)
    if found is None:
        return [text]
    outer = _SUBSTITUTION.sub("OUTPUT", text)
    return [found[1]] if outer.endswith("=OUTPUT") else [outer, found[1]]


def _words(text: str) -> list[str] | None:
    """None: a quotation, or a line with a backslash at its end, goes on."""
    if text.endswith("\\"):
        return None
    try:
        return shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError:
        return None
