"""A small trace and a command line to simulate it with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from headway.services.cli import app

Simulate = Callable[..., dict[str, Any]]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """80 requests in 20 seconds, in the form of the Azure traces."""
    random = Random(5)
    path = tmp_path / "trace.csv"
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for place in range(80):
        at = f"2023-11-16 18:15:{place // 4:02d}.{place % 4 * 25}00000"
        rows.append(f"{at},{random.randint(10, 3000)},{random.randint(1, 200)}")
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def simulate() -> Simulate:
    """Runs the command with --json and gives its object."""

    def run(*arguments: str) -> dict[str, Any]:
        result = CliRunner().invoke(app, ["simulate", *arguments, "--json"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        figures: dict[str, Any] = json.loads(result.stdout)
        return figures

    return run
