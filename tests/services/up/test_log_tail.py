"""Children's logs, read for a person."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.services import log_tail
from headway.services.log_tail import LogFollower, last_words, read_line


def test_a_structured_line_becomes_a_sentence_with_its_fields() -> None:
    line = read_line(
        json.dumps(
            {"event": "cannot_start", "level": "error", "error": "no model", "hint": "make setup", "n": 3}
        )
    )
    assert line is not None
    assert (line.level, line.message) == ("error", "cannot start: no model; try: make setup  n=3")
    assert line.is_loud


def test_an_exception_is_shown_by_its_last_line() -> None:
    text = json.dumps({"event": "died", "level": "critical", "exception": "Traceback …\n  x\nKeyError: 'k'"})
    line = read_line(text)
    assert line is not None
    assert line.message == "died: KeyError: 'k'"


@pytest.mark.parametrize(
    ("text", "is_loud"),
    [
        ("1:M 29 Nov 2026 20:36:50.339 * Ready to accept connections unix", False),
        ("1:M 29 Nov 2026 20:36:50.339 # WARNING Memory overcommit must be enabled! …", False),
        ("1:M 29 Nov 2026 20:36:50.339 # Valkey is now ready to exit, bye bye...", False),
        ("1:signal-handler (1795985582) Received SIGTERM scheduling shutdown...", False),
        ("1:M 29 Nov 2026 20:36:50.339 # Can't save in background: fork: Cannot allocate memory", True),
        ('{"event": "step", "level": "info"}', False),
        ('{"event": "step", "level": "warning"}', True),
        ("Segmentation fault", True),
        ("{not json", True),
    ],
)
def test_only_what_somebody_must_see_is_loud(text: str, is_loud: bool) -> None:
    line = read_line(text)
    assert line is not None
    assert line.is_loud is is_loud


def test_last_words_are_the_errors_of_this_life_alone(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text('{"event": "old", "level": "error"}\n')
    offset = log.stat().st_size
    with log.open("a") as file:
        file.write('{"event": "hello", "level": "info"}\n{"event": "new", "level": "error"}\n')
    assert last_words(log, offset) == ["new"]
    assert last_words(tmp_path / "none.log") == []


def test_a_follower_yields_each_complete_line_once(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("before\n")
    follower = LogFollower(log)
    with log.open("a") as file:
        file.write("one\ntw")
        file.flush()
        assert [line.message for line in follower.new_lines()] == ["one"]
        file.write("o\n")
        file.flush()
        assert [line.message for line in follower.new_lines()] == ["two"]
    assert list(follower.new_lines()) == []


def test_a_log_that_grows_too_long_is_moved_aside_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_tail, "MAX_LOG_BYTES", 10)
    log = tmp_path / "x.log"
    with log.open("a") as file:
        follower = LogFollower(log)
        file.write("a long first line\n")
        file.flush()
        assert len(list(follower.new_lines())) == 1
        follower.bound()
        file.write("next\n")
        file.flush()
        assert [line.message for line in follower.new_lines()] == ["next"]
    assert log.read_text() == "next\n"
    assert (tmp_path / "x.log.1").read_text() == "a long first line\n"
