"""A progress bar on one line of a terminal."""

from __future__ import annotations

import time
from typing import Final, TextIO

from headway.services.units import show_duration

WIDTH: Final = 30
PAUSE_SECONDS: Final = 0.1


class ProgressBar:
    """``[#######.......]  120/500  38.2/s  9s left``; silent where ``shows`` is not set."""

    def __init__(self, stream: TextIO, total: int, *, shows: bool) -> None:
        self._stream = stream
        self._total = total
        self._shows = shows
        self._done = 0
        self._began: tuple[float, int] | None = None
        self._drawn_at = 0.0

    def advance(self, count: int) -> None:
        """So many more are done."""
        self._done += count
        now = time.monotonic()
        if self._began is None:
            self._began = now, self._done
        if self._shows and now - self._drawn_at >= PAUSE_SECONDS:
            self._drawn_at = now
            self._draw(now)

    def tell(self, text: str) -> None:
        """A line of its own, above the bar, also where that is not shown."""
        print(f"\r\x1b[K{text}" if self._shows else text, file=self._stream, flush=True)
        if self._shows:
            self._draw(time.monotonic())

    def close(self) -> None:
        """Draw the last state and leave the line."""
        if self._shows:
            self._draw(time.monotonic())
            print(file=self._stream, flush=True)

    def _draw(self, now: float) -> None:
        filled = WIDTH * self._done // max(1, self._total)
        bar = "#" * filled + "." * (WIDTH - filled)
        since, before = self._began or (now, self._done)
        rate = (self._done - before) / (now - since) if now - since > 0.5 else 0.0
        told = f"  {rate:.1f}/s  {show_duration((self._total - self._done) / rate)} left" if rate else ""
        print(f"\r[{bar}]  {self._done}/{self._total}{told}\x1b[K", end="", file=self._stream, flush=True)
