"""What images install before our own wheel is what the wheel's extras ask for, and never ourselves."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]["optional-dependencies"]


def printed(*extras: str) -> list[str]:
    command = [sys.executable, "ops/docker/requirements.py", *extras]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_brings_what_it_names_and_nothing_of_ours(extra: str) -> None:
    asked = printed(extra)
    assert not [each for each in asked if each.startswith("headway")], "an index has another one, or none"
    assert {each for each in EXTRAS[extra] if not each.startswith("headway[")} <= set(asked)


def test_what_an_extra_takes_over_from_another_is_there_once() -> None:
    asked = printed("gateway", "batch")
    assert set(EXTRAS["gateway"]) <= set(printed("batch"))
    assert len(asked) == len(set(asked))
    assert set(asked) == set(printed("batch"))


def test_an_extra_that_is_not_there_is_named_with_those_that_are() -> None:
    command = [sys.executable, "ops/docker/requirements.py", "no-such"]
    refused = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "'no-such'" in refused.stderr
    assert "batch" in refused.stderr


IMPORTS_ALONE = """
import importlib.metadata as metadata, json, sys
brought = set(json.loads(sys.argv[1])) | {"headway"}
class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        owners = OWNERS.get(name.partition(".")[0])
        if owners and not brought.intersection(each.lower().replace("_", "-") for each in owners):
            raise ModuleNotFoundError(f"{name} is not brought along", name=name)
OWNERS = metadata.packages_distributions()
sys.meta_path.insert(0, Absent)
for name in sys.argv[2:]:
    __import__(name)
"""
"""Imports modules as in an environment where only some of the installed distributions are."""


def brought_by(extra: str) -> set[str]:
    """The distributions that an installation with this extra holds, by what each of them asks for here."""
    found: set[tuple[str, str]] = set()
    todo = [Requirement(each) for each in printed(extra)]
    while todo:
        asked = todo.pop()
        for wanted in ("", *asked.extras):
            if (canonicalize_name(asked.name), wanted) in found:
                continue
            found.add((canonicalize_name(asked.name), wanted))
            needs = map(Requirement, requires(asked.name) or ())
            todo += [need for need in needs if not need.marker or need.marker.evaluate({"extra": wanted})]
    return {name for name, _ in found}


@pytest.mark.parametrize(
    ("extra", "modules"),
    [
        ("gateway", ["headway.services.gateway_process", "headway.gateway.app"]),
        # Kombu imports what it asks for only in an extra: the batch service's image did not start without it.
        ("batch", ["headway.services.batch.worker_process", "kombu.transport.redis"]),
    ],
)
def test_an_extra_brings_all_that_its_process_imports(extra: str, modules: list[str]) -> None:
    command = [sys.executable, "-c", IMPORTS_ALONE, json.dumps(sorted(brought_by(extra))), *modules]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-600:]
