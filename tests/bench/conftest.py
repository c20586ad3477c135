"""The scripts of ops/bench, which import each other by name."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent.parent / "ops/bench"


@pytest.fixture(scope="module")
def bench() -> Any:
    """A module of ops/bench by its name."""
    sys.path.insert(0, str(FOLDER))
    yield import_module
    sys.path.remove(str(FOLDER))
