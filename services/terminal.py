"""What ``headway up`` tells the person who started it: few lines, aligned, in colour where that is wanted."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Final, TextIO

from headway.services.errors import ServiceError

_COLOURS: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
NAME_WIDTH: Final = 10
STATE_WIDTH: Final = 10


class Terminal:
    """Writes to one stream; a closed one (the terminal window is gone) is no reason to fail."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._colours = self._stream.isatty() and not os.environ.get("NO_COLOR")

    def paint(self, text: str, colour: str) -> str:
        """The text in a colour, where the stream shows colours."""
        return f"\033[{_COLOURS[colour]}m{text}\033[0m" if self._colours else text

    def line(self, text: str = "") -> None:
        """One line as it is."""
        with contextlib.suppress(OSError, ValueError):
            print(text, file=self._stream, flush=True)

    def event(self, name: str, state: str, detail: str, *, colour: str = "green") -> None:
        """One aligned line: who, what happened, details."""
        self.line(f"  {name:<{NAME_WIDTH}}{self.paint(f'{state:<{STATE_WIDTH}}', colour)}{detail}")

    def failure(self, error: ServiceError) -> None:
        """What is wrong and what to type."""
        show_failure(error, self._stream)


def show_failure(error: ServiceError, stream: TextIO | None = None) -> None:
    """Print an expected failure: what is wrong, and below it what to type."""
    out = sys.stderr if stream is None else stream
    with contextlib.suppress(OSError, ValueError):
        print(f"headway: {error}", file=out, flush=True)
        if error.hint:
            print(f"  try: {error.hint}", file=out, flush=True)


def short_path(path: Path) -> str:
    """A path as a person would type it: ``~`` for the home folder."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) and path != home else str(path)
