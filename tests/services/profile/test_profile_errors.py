"""A model that cannot be loaded is an error with an exit code, not a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("content", [None, b"xx", b"GGUF"])
def test_a_model_that_cannot_be_loaded_is_said_in_one_line(tmp_path: Path, content: bytes | None) -> None:
    model = tmp_path / "model.gguf"
    if content is not None:
        model.write_bytes(content)
    command = [sys.executable, "-m", "headway.services.cli", "profile", "--model", str(model)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert str(model) in ended.stderr
