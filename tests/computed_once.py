"""What one of the processes that share a test run computes, and the others read."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from typing import Any

import pytest


def computed_once(factory: pytest.TempPathFactory, name: str, compute: Callable[[], Any]) -> Any:
    """What ``compute`` returns, a value of JSON; xdist's processes share a run's folder, and so the value."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    kept = folder / f"{name}.json"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(json.dumps(compute()))
        return json.loads(kept.read_text())
