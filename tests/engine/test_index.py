"""The indexes say the truth: every field case and every invariant has its line, and what it names exists."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest
from tests.mutation.test_mutants import MUTANTS

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
CASES = [str(number) for number in range(1, 42)]
INVARIANTS = [
    f"{letter}{number}" for letter, last in (("B", 13), ("S", 17), ("O", 7)) for number in range(1, last + 1)
]
NO_TEST = "cannot occur"


def rows(page: str) -> dict[str, str]:
    """The table's lines by their first cell."""
    lines = (TESTS / "engine" / page).read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    names = [row[0] for row in cells[2:]]
    assert len(names) == len(set(names))
    return {row[0]: " ".join(row[1:]) for row in cells[2:]}


def named_tests(row: str) -> list[tuple[str, str]]:
    return re.findall(r"`([\w/]+\.py)::(\w+)`", row)


@pytest.mark.parametrize(("page", "names"), [("field_cases.md", CASES), ("invariants.md", INVARIANTS)])
def test_every_number_has_one_line_with_tests_that_exist(page: str, names: list[str]) -> None:
    lines = rows(page)
    assert list(lines) == names
    assert [name for name, row in lines.items() if not named_tests(row) and NO_TEST not in row] == []
    missing = [
        f"{file}::{test}"
        for row in lines.values()
        for file, test in named_tests(row)
        if not re.search(rf"^\s*(async )?def {test}\(|^{test} = ", (TESTS / file).read_text(), re.MULTILINE)
    ]
    assert missing == []


def test_every_test_of_a_case_stands_in_its_line() -> None:
    lines = rows("field_cases.md")
    found = 0
    for path in TESTS.rglob("test_*.py"):
        if path.is_relative_to(TESTS / "gateway"):
            continue  # their numbers are those of tests/field_cases.md
        for name, numbers in re.findall(
            r"^\s*(?:async )?def (test_cases?_((?:(?:and_)?\d+_)+)\w+)", path.read_text(), re.MULTILINE
        ):
            for number in re.findall(r"\d+", numbers):
                found += 1
                assert (str(path.relative_to(TESTS)), name) in named_tests(lines[number]), name
    assert found > 50


def test_mutants_that_the_invariants_name_exist() -> None:
    known = {mutant.name for mutant in MUTANTS}
    named = {name for row in rows("invariants.md").values() for name in re.findall(r"“([^”]+)”", row)}
    assert len(named) > 30
    assert sorted(named - known) == []


def test_the_drawing_of_the_house_shows_every_file() -> None:
    drawn = re.findall(r"(?<!/)\b(\w+)\.py\b", (ROOT / "engine" / "README.md").read_text(encoding="utf-8"))
    files = {path.stem for path in (ROOT / "engine").glob("*.py")}
    assert sorted(files - set(drawn)) == []
    assert sorted(set(drawn) - files) == []


def code_lines(path: Path) -> int:
    """Lines with code on them: no comments, docstrings or blank lines."""
    text = path.read_text(encoding="utf-8")
    documents = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {
        line
        for token in tokens
        if token.type not in (tokenize.COMMENT, tokenize.ENDMARKER) and token.string.strip()
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code - documents)


def test_the_page_says_how_long_the_scheduler_is_and_it_stays_about_1500_lines() -> None:
    page = (ROOT / "engine" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| (`\w+` \d+[^|]*) \| ([\d,]+) \|$", page, re.MULTILINE)
    assert len(rows) == 4
    for name, files, total in rows:
        told = {file: int(lines) for file, lines in re.findall(r"`(\w+)` (\d+)", files)}
        counted = {file: code_lines(ROOT / "engine" / f"{file}.py") for file in told}
        far = {file: lines for file, lines in counted.items() if abs(lines - told[file]) > 5}
        assert far == {}, f"{name}: these have other lengths by now"
        assert sum(told.values()) == int(total.replace(",", ""))
    assert sum(int(lines) for lines in re.findall(r"` (\d+)", rows[0][1])) <= 1600


def test_no_two_decisions_share_a_number_and_those_that_the_code_names_exist() -> None:
    records = sorted((ROOT / "ops" / "decisions").glob("[0-9]*.md"))
    numbers = [record.name[:4] for record in records]
    assert len(numbers) == len(set(numbers)) > 15
    assert all(record.read_text(encoding="utf-8").startswith(f"# {record.name[:4]}: ") for record in records)
    cited = {
        number
        for folder in ("engine", "kernels", "queueing", "gateway", "services")
        for path in (ROOT / folder).rglob("*.py")
        for number in re.findall(r"decision (\d{4})", path.read_text(encoding="utf-8"))
    }
    assert sorted(cited - set(numbers)) == []
