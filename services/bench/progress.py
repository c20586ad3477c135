"""Live progress on standard error: one line that is drawn again in a terminal, one now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

from headway.services.bench.answer import Outcome
from headway.services.bench.load import Loaded, Point
from headway.services.columns import terminal_width
from headway.services.percentile import percentile
from headway.services.units import show_duration

SELDOM_SECONDS: Final = 10.0
"""Between two lines where nobody looks at a terminal."""
RECENT: Final = 200
"""Requests that the shown TTFT is taken from."""


class Progress:
    """Shows one point after the other."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._is_live = self._stream.isatty()
        self._shown_at = -SELDOM_SECONDS
        self._point: Point | None = None

    def watch(self, loaded: Loaded, now: float) -> None:
        """Show the point, if it is time to."""
        if loaded.point is not self._point:
            self._point, self._shown_at = loaded.point, -SELDOM_SECONDS
        if not self._is_live and now - self._shown_at < SELDOM_SECONDS:
            return
        self._shown_at = now
        self._write(progress_line(loaded, now), is_last=False)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._write(text, is_last=True)

    def _write(self, text: str, *, is_last: bool) -> None:
        if self._is_live:
            cut = text if is_last else text[: (terminal_width() or 80) - 1]
            self._stream.write(f"\r\033[K{cut}" + ("\n" if is_last else ""))
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


def progress_line(loaded: Loaded, now: float) -> str:
    """Where a point stands."""
    if now < loaded.start:
        phase = f"warming up, {show_duration(now)} of {show_duration(loaded.start)}"
    elif now < loaded.end:
        phase = (
            f"measuring, {show_duration(now - loaded.start)} of {show_duration(loaded.end - loaded.start)}"
        )
    else:
        phase = f"waiting for the last since {show_duration(now - loaded.end)}"
    answers = loaded.answers
    ended = [answer for answer in answers if answer.outcome is not None]
    finished = sum(answer.outcome is Outcome.FINISHED for answer in ended)
    since = max(0.0, now - 5.0)
    tokens = sum(
        answer.tokens_between(since, now) for answer in answers if answer.times and answer.times[-1] >= since
    )
    parts = [
        f"{point_name(loaded.point)}: {phase}",
        f"{len(answers)} sent, {len(answers) - len(ended)} open, {finished} finished",
        f"{tokens / max(0.5, now - since):.0f} tokens/s",
    ]
    ttfts = sorted(answer.ttft_seconds or 0.0 for answer in answers[-RECENT:] if answer.times)
    if ttfts:
        parts.append(
            f"TTFT P50 {1e3 * percentile(ttfts, 50):.0f} ms, P99 {1e3 * percentile(ttfts, 99):.0f} ms"
        )
    if failed := len(ended) - finished:
        parts.append(f"{failed} not finished")
    return " · ".join(parts)


def point_name(point: Point) -> str:
    """``4/s``, or ``16 at a time``."""
    return f"{point.concurrency} at a time" if point.concurrency is not None else f"{point.rate or 0:g}/s"


def point_sentence(point: Mapping[str, Any]) -> str:
    """What stays of a point's progress."""
    name = point_name(Point("", rate=point["rate"], concurrency=point["concurrency"]))
    ttft, share = point["ttft_seconds"]["p99"], point["attainment"]
    parts = [f"{point['finished']} of {point['requests']} finished"]
    if point["tokens_per_second"] is not None:
        parts.append(f"{point['tokens_per_second']:.0f} tokens/s")
    if ttft is not None:
        parts.append(f"TTFT P99 {1e3 * ttft:.0f} ms")
    if share is not None:
        parts.append(f"{100 * share:.1f} % within the limits")
    return f"{name}: " + ", ".join(parts) + (" · INVALID" if point["client"]["complaints"] else "")
