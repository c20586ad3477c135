"""Live progress: one line in a terminal that is drawn again and fits it, a line now and then elsewhere."""

from __future__ import annotations

import io

import pytest
from tests.services.bench.conftest import answered

from headway.services.bench.answer import Answer, Outcome
from headway.services.bench.load import Loaded, Point
from headway.services.bench.progress import SELDOM_SECONDS, Progress, progress_line


class Terminal(io.StringIO):
    """A stream that says that somebody looks at it."""

    def isatty(self) -> bool:
        return True


def loaded(*answers: Answer, point: Point | None = None) -> Loaded:
    return Loaded(point or Point("0", rate=4.0), 5.0, 35.0, answers=list(answers))


def open_answer(due: float) -> Answer:
    made = answered(due, [due + 0.4])
    made.outcome = made.ended = None
    return made


@pytest.mark.parametrize(
    ("now", "phase", "rate"),
    [
        (2.0, "warming up, 2.0s of 5.0s", "2 tokens/s"),
        (17.0, "measuring, 12s of 30s", "1 tokens/s"),
        (38.0, "waiting for the last since 3.0s", "1 tokens/s"),
    ],
)
def test_the_line_tells_where_a_point_stands(now: float, phase: str, rate: str) -> None:
    due = now - 2.0  # three tokens since, of the last five seconds at most
    made = [answered(due, [due + 0.2, due + 1.0]), answered(due, [], outcome=Outcome.REFUSED)]
    told = progress_line(loaded(*made, open_answer(due)), now)
    assert told == (
        f"4/s: {phase} · 3 sent, 1 open, 1 finished · {rate} · TTFT P50 200 ms, P99 400 ms · 1 not finished"
    )


def test_in_a_terminal_the_line_is_drawn_again_and_never_wider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    progress = Progress(stream)
    for tenth in range(5):
        progress.watch(loaded(answered(1.0, [1.2])), 17.0 + tenth / 10)
    assert stream.getvalue().count("\n") == 0
    _, *drawn = stream.getvalue().split("\r\033[K")
    assert drawn == ["4/s: measuring, 12s of 30s · "] * 5
    progress.say("a sentence that stays is whole, however narrow the terminal")
    assert stream.getvalue().endswith("\r\033[Ka sentence that stays is whole, however narrow the terminal\n")


def test_where_nobody_looks_a_line_comes_seldom_and_at_once_for_a_new_point() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    first, second = loaded(), loaded(point=Point("1", rate=8.0))
    for seconds in range(25):
        progress.watch(first, float(seconds))
    progress.watch(second, 0.0)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 24 // SELDOM_SECONDS + 1 + 1
    assert lines[-1].startswith("8/s: warming up")
    assert "\033" not in stream.getvalue()
