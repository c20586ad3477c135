"""What ``make bench-speculation`` concludes is what its rounds say."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from headway.engine.scripted import ByteTokenizer, ScriptedRunner

FOLDER = Path(__file__).resolve().parent.parent.parent / "ops/bench"


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    sys.path.insert(0, str(FOLDER))
    yield import_module("speculation")
    sys.path.remove(str(FOLDER))


def rounds(bench: Any, *ratios: float) -> list[tuple[Any, Any]]:
    """Of 100 tokens in a second without guesses."""
    return [(bench.Turn(100, 1.0, 2.0), bench.Turn(100, 1.0 / ratio, 2.0 / ratio)) for ratio in ratios]


@pytest.mark.parametrize(
    ("work", "ratios", "is_met"),
    [
        ("edit", (1.2, 1.31, 1.5), True),
        ("edit", (1.1, 1.29, 1.6), False),
        ("plain", (0.9, 0.975, 1.0), True),
        ("plain", (0.95, 0.96, 1.1), False),
        ("sampled", (0.95, 0.96, 1.1), False),
    ],
)
def test_the_median_of_the_rounds_is_held_to_the_goal(
    bench: Any, work: str, ratios: tuple[float, ...], is_met: bool
) -> None:
    row = bench.row_of(work, 1, rounds(bench, *ratios))
    assert row["is_met"] is is_met
    assert row["ratio"] == pytest.approx(ratios[1])
    assert row["quartiles"] == pytest.approx((ratios[0], ratios[2]))
    assert row["ratio_cpu"] == pytest.approx(ratios[1])


def test_more_answers_at_a_time_have_no_goal(bench: Any) -> None:
    row = bench.row_of("edit", 4, rounds(bench, 0.5))
    assert row["is_met"]
    assert row["least"] is None


@pytest.mark.parametrize("concurrency", [1, 3])
def test_both_arms_answer_every_prompt_and_alike(bench: Any, concurrency: int) -> None:
    runner, tokenizer = ScriptedRunner(max_model_len=2048, block_count=512), ByteTokenizer()
    arms = [bench.Arm(runner, tokenizer, drafts) for drafts in (0, 8)]
    work = bench.works(tokenizer)["edit"]
    base, own = bench.play(*arms, work, concurrency, first=1)
    assert base.answers == own.answers
    assert len(base.answers) == len(work[0])
    assert base.tokens == own.tokens == bench.ANSWER_TOKENS * len(work[0])
    assert arms[1].load["draft_tokens"] > 0, "it guessed, or nothing was compared"


@pytest.mark.parametrize("least", [0.0, 1e9])
def test_a_missed_goal_is_an_exit_code(
    bench: Any,
    least: float,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(bench.LEAST, "plain", least)
    file = tmp_path / "rows.json"
    options = bench.parse(["--rounds", "1", "--works", "plain", "--json", str(file)])
    runner = ScriptedRunner(max_model_len=2048, block_count=512)
    assert bench.judge(runner, ByteTokenizer(), options) == int(least > 0.0)
    (row,) = json.loads(file.read_text())
    assert row["is_met"] is (least == 0.0)
    assert ("MISSED" in capsys.readouterr().out) is (least > 0.0)


def test_an_answer_that_differs_is_an_error_whatever_the_speed(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = (bench.Turn(1, 1.0, 1.0, [(1, 2)]), bench.Turn(1, 0.1, 0.1, [(1, 3)]))
    monkeypatch.setattr(bench, "play", lambda *_: turns)
    options = bench.parse(["--rounds", "1", "--works", "plain"])
    assert bench.judge(ScriptedRunner(), ByteTokenizer(), options) == 1
    assert "answers differ" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--works", "poems"], "no work poems: choose among edit"),
        (["--works", ""], "no work named"),
        (["--concurrencies", "0"], "numbers from 1"),
        (["--rounds", "0"], "1 or more"),
    ],
)
def test_a_wrong_option_ends_with_a_message(
    bench: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.parse(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
