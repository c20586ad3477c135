"""The operator's pages name commands and options that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main
from tests.ops.conftest import ROOT

from headway.services.cli import app

PAGES: Final = [
    ROOT / name
    for name in (
        "ops/runbook.md",
        "docs/metrics.md",
        "docs/kubernetes.md",
        "docs/troubleshooting.md",
        "docs/production.md",
        "docs/tune.md",
    )
]
CODE: Final = re.compile(r"`([^`\n]+)`")
COMMAND: Final = re.compile(r"\bheadway ((?:[a-z]+ ?)+)")
OPTION: Final = re.compile(r"--[a-z][a-z0-9-]+")
LINK: Final = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
OTHERS: Final = {
    *(
        "--build",
        "--detach",
        "--profile",
        "--max-time",
        "--check",
        "--cluster",
        "--scale",
        "--watch",
        "--namespace",
    ),
    *(
        "--create-namespace",
        "--set",
        "--values",
        "--from-literal",
        "--set-string",
        "--for",
        "--timeout",
        "--replicas",
    ),
}
"""Of docker, curl, kubectl, helm and redis-cli."""


def inner(command: Any) -> dict[str, Any]:
    """The commands of a command; typer's own classes, some versions of which are not click's."""
    commands: dict[str, Any] = getattr(command, "commands", {})
    return commands


def options(command: Any) -> set[str]:
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*map(options, inner(command).values()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_only_commands_and_options_that_there_are(page: Path) -> None:
    root = typer.main.get_command(app)
    known = options(root) | OTHERS
    text = page.read_text()
    for code in [*CODE.findall(text), *re.findall(r"^ *headway .*$", text, re.MULTILINE)]:
        for words in COMMAND.findall(code):
            command: Any = root
            for word in words.split():
                if not inner(command):
                    break  # an argument
                assert word in inner(command), f"headway {words}"
                command = inner(command)[word]
        assert set(OPTION.findall(code)) <= known, code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []
