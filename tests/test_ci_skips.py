"""What is missing fails CI, and is skipped on a laptop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = {
    "test_whole.py": """
import pytest
pytest.importorskip("triton_that_nobody_has")
def test_never_reached(): pass
""",
    "test_marked.py": """
import pytest
@pytest.mark.skipif(True, reason="the demo model is not installed")
def test_marked(): pass
""",
    "test_machine.py": """
import pytest
def test_machine(): pytest.skip("this CPU has no AVX-512")
""",
}


@pytest.mark.parametrize(
    ("ci", "told"),
    [("true", ["1 failed, 1 skipped, 1 error", "could not import 'triton_that_nobody_has'", "must not skip"]),
     ("", ["3 skipped"])],
    ids=["in CI", "on a laptop"],
)  # fmt: skip
def test_a_missing_package_fails_ci_and_is_skipped_elsewhere(
    tmp_path: Path, ci: str, told: list[str]
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.ci_skips", "-c", os.devnull, "-rA"]
    command += ["--continue-on-collection-errors", "-p", "no:cacheprovider", "-p", "no:schemathesis"]
    command += ["-p", "no:langsmith_plugin", "-p", "no:xdist", "--rootdir", str(tmp_path), str(tmp_path)]
    environment = {**os.environ, "CI": ci, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) is bool(ci), done.stdout + done.stderr
    for words in told:
        assert words in done.stdout, done.stdout
