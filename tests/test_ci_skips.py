"""What is missing fails CI, and is skipped on a laptop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ci_skips import fail_if_missing

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


def test_a_missing_package_fails_ci_whether_a_file_or_one_test_wants_it(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.ci_skips", "-c", os.devnull, "-rA"]
    command += ["--continue-on-collection-errors", "--rootdir", str(tmp_path), str(tmp_path)]
    environment = {**os.environ, "CI": "true", "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    for words in (
        "1 skipped, 2 errors",
        "could not import 'triton_that_nobody_has'",
        "must not skip its tests",
    ):
        assert words in done.stdout, done.stdout


def skipped(reason: str) -> pytest.CollectReport:
    return pytest.CollectReport(
        "tests/test_x.py", "skipped", ("tests/test_x.py", 3, f"Skipped: {reason}"), []
    )


@pytest.mark.parametrize(
    ("ci", "reason", "outcome"),
    [
        ("true", "could not import 'triton': No module named 'triton'", "failed"),
        ("true", "valkey9 is not installed", "failed"),
        ("true", "this CPU has no AVX-512 with bf16 and VNNI", "skipped"),
        ("", "could not import 'triton': No module named 'triton'", "skipped"),
    ],
)
def test_only_what_is_missing_and_only_in_ci(
    ci: str, reason: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    report = skipped(reason)
    fail_if_missing(report)
    assert report.outcome == outcome
