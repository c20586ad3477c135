"""The list of cases is complete, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def test_each_case_has_a_test_or_says_why_it_cannot_occur() -> None:
    rows = ROW.findall((TESTS / "field_cases.md").read_text())
    assert [int(number) for number, _, _ in rows] == list(range(1, 41))
    for number, _, here in rows:
        assert NAMED.search(here) or "Cannot occur: " in here, f"case {number}"


def test_every_test_of_the_list_exists() -> None:
    named = NAMED.findall((TESTS / "field_cases.md").read_text())
    assert len(named) >= 60
    for file, name in named:
        assert f"def {name}(" in (TESTS / file).read_text(), f"{file}::{name}"


def test_every_test_of_a_case_from_25_on_stands_in_its_line() -> None:
    """The engine has cases of its own with the same numbers; the gateway's names are of this list."""
    rows = {number: here for number, _, here in ROW.findall((TESTS / "field_cases.md").read_text())}
    found = 0
    for path in (TESTS / "gateway").glob("test_*.py"):
        for name, number in re.findall(r"def (test_case_(\d+)_\w+)", path.read_text()):
            assert (f"gateway/{path.name}", name) in NAMED.findall(rows[number]), name
            found += 1
    assert found >= 9
