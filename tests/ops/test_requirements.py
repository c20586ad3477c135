"""What images install before our own wheel is what the wheel's extras ask for, and never ourselves."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

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
