"""A model that cannot be loaded is an error with an exit code, not a traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services.up.conftest import Command


@pytest.mark.parametrize("content", [None, b"xx", b"GGUF"])
def test_a_model_that_cannot_be_loaded_is_said_in_one_line(
    command: Command, tmp_path: Path, content: bytes | None
) -> None:
    model = tmp_path / "model.gguf"
    if content is not None:
        model.write_bytes(content)
    ended = command("profile", "--model", str(model))
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert str(model) in ended.stderr
