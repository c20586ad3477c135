"""docs/operating.md does what it says, on jobs that a real worker answered."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.services.tenants.test_tenants_page import sh
from tests.services.up.headway_up import HeadwayUp, headway, running_up

if TYPE_CHECKING:
    from collections.abc import Generator

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Generator[HeadwayUp]:
    with running_up(tmp_path_factory.mktemp("up")) as running:
        yield running


def test_the_commands_of_the_page_work_in_order_and_print_what_it_shows(up: HeadwayUp) -> None:
    printed = sh(up, "echo ----\n".join(BLOCKS))
    jobs, again, dlq, workers, top = printed.split("----\n")
    shown = re.findall(r"^    .*$", PAGE, re.MULTILINE)
    heading = next(line.strip() for line in shown if "TIME (UTC)" in line)
    events = [line.split()[2] for line in shown if re.match(r" +\d\d:", line)]
    table = jobs.splitlines()
    at = next(at for at, line in enumerate(table) if line.split() == heading.split())
    assert [line.split()[2] for line in table[at + 1 :]] == events
    assert re.search(r"^length .*acme", jobs, re.MULTILINE)
    met, *ended = again.splitlines()
    assert met in {"queued", "running", "finished"}
    assert {json.loads(line)["tenant"] for line in ended} == {"acme"}
    assert dlq == "no dead letters\n"
    assert up.status.workers[0].id in workers
    assert json.loads(top.splitlines()[-1])["tenants"][0]["tenant"] == "acme"


def test_every_command_of_the_groups_is_on_the_page(tmp_path: Path) -> None:
    for group in ("jobs", "dlq"):
        text = headway(group, "--help", home=tmp_path).stdout
        names = re.findall(r"^  ([a-z]+)  ", text.partition("Commands:")[2], re.MULTILINE)
        assert len(names) >= 4
        for name in names:
            assert f"headway {group} {name}" in PAGE
