"""The ``headway`` command inside the test's process: as a script calls it, without the cost of a start."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.services.cli import main

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """``command("tail", job, HEADWAY_STATE_DIR=…)``: exit code, standard output and error."""
    for name in os.environ:
        if name.startswith("HEADWAY_") or name == "XDG_STATE_HOME":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(*arguments: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["headway", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main()
        for name in env:
            monkeypatch.delenv(name)
        code = ended.value.code
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(list(arguments), code if isinstance(code, int) else 0, out, err)

    return run
