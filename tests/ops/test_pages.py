"""The operator's pages name commands and options that there are."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main
from tests.ops.conftest import ROOT
from tests.ops.shell_blocks import Command, commands_of

from headway.services.cli import app

PAGES: Final = [
    ROOT / "README.md",
    ROOT / "ops/runbook.md",
    ROOT / "ops/docker/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
HEADWAY: Final = [command for page in PAGES for command in commands_of(page, "headway")]
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
        "--help",
        "--volumes",
        "--cache-ram",
        "--build-arg",
        "--basic-auth",
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
"""Of docker, curl, kubectl, helm, redis-cli and Flower; `--help` has everybody."""
SCRIPTS: Final = {
    option
    for folder in ("ops/bench", "ops/experiments")
    for script in (ROOT / folder).glob("*.py")
    for option in re.findall(r'add_argument\(\s*"(--[a-z-]+)"', script.read_text())
}
"""Of what `make bench-…` and the pages call by path."""
SHELL: Final = {"|", ">", "&", "&&", ";"}
"""Where a command ends."""


def inner(command: Any) -> dict[str, Any]:
    """The commands of a command; typer's own classes, some versions of which are not click's."""
    commands: dict[str, Any] = getattr(command, "commands", {})
    return commands


def is_itself(command: Any, word: str) -> bool:
    """Whether a command that has others below it is meant itself, as ``headway bench --url …`` is."""
    return bool(command.invoke_without_command) and word.startswith("-")


def options(command: Any) -> set[str]:
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*map(options, inner(command).values()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_only_commands_and_options_that_there_are(page: Path) -> None:
    root = typer.main.get_command(app)
    known = options(root) | OTHERS | SCRIPTS
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


def test_the_pages_have_commands_to_try() -> None:
    assert len(HEADWAY) >= 25


@pytest.mark.parametrize("shown", HEADWAY, ids=lambda shown: f"{shown.page}-{shown.line}")
def test_a_pages_command_is_one_that_headway_takes(shown: Command) -> None:
    words = list(itertools.takewhile(lambda word: word not in SHELL, shown.words[1:]))
    if "…" in words:
        words = words[: words.index("…")]  # what follows is left to the reader
    command: Any = typer.main.get_command(app)
    while inner(command) and words and not is_itself(command, words[0]):
        command = inner(command)[words.pop(0)]
    # Reads options and arguments as a call would, and calls nothing.
    command.make_context(command.name, words).close()
