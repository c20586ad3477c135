"""Decision records can be found: a number of its own for each, and a line in the list."""

from __future__ import annotations

import re

from tests.ops.conftest import ROOT

FOLDER = ROOT / "ops/decisions"
ENTRY = re.compile(r"^\| \[(\d{4})\]\((.+)\) \| (.+) \|$", re.MULTILINE)


def test_every_record_has_a_number_of_its_own_and_stands_in_the_list_by_its_title() -> None:
    listed = {name: (number, title) for number, name, title in ENTRY.findall(read("README.md"))}
    records = sorted(path.name for path in FOLDER.glob("[0-9]*.md"))
    assert list(listed) == records, "in order, each once"
    assert len({name[:4] for name in records}) == len(records)
    for name in records:
        head = read(name).splitlines()[0]
        number, title = listed[name]
        assert head.lower() == f"# {number}: {title}".lower()
        assert name.startswith(number)


def read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
