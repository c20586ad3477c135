"""What CI runs tells of everything that it ran, however it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tests.ops.conftest import ROOT

MAKEFILE = """
dev:
test:
\t@case "$(ARGS)" in *--ignore=*) grep SigIgn /proc/$$$$/status; $(TESTS);; *) echo computed;; esac
test-redis7:
\t@echo the old server
lint types wheel-check:
\t@echo $@ said
"""


def start(folder: Path, tests: str) -> subprocess.Popen[str]:
    """The script beside a Makefile whose tests are this command; in a process group of its own."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", folder / ".ci/run")
    (folder / "Makefile").write_text(MAKEFILE)
    return subprocess.Popen(
        [str(folder / ".ci/run")],
        env={**os.environ, "TESTS": tests, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_a_run_that_ends_by_itself_tells_all_and_its_tests_hear_an_interrupt(tmp_path: Path) -> None:
    run = start(tmp_path, "exit 3")
    told, _ = run.communicate(timeout=30)
    assert run.returncode == 1
    for words in (
        "computed",
        "the old server",
        "lint said",
        "types said",
        "wheel-check said",
        "tests: 2, computing tests: 0,",
    ):
        assert words in told
    ignored = int(next(line for line in told.splitlines() if line.startswith("SigIgn")).split()[-1], 16)
    assert not ignored & 1 << (signal.SIGINT - 1), "what the tests start would ignore it too"


def test_a_run_that_is_ended_from_outside_tells_what_ran_beside_the_tests(tmp_path: Path) -> None:
    run = start(tmp_path, "sleep 300")
    try:
        logs: list[str] = []
        while not ("computed" in logs and "wheel-check said" in logs):
            time.sleep(0.01)
            logs = [line for file in tmp_path.glob("tmp.*/*") for line in file.read_text().splitlines()]
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=30) == -signal.SIGTERM
    finally:
        os.killpg(run.pid, signal.SIGKILL)  # as CI does: what it started goes with it
    told, _ = run.communicate(timeout=30)
    for words in ("computed", "the old server", "lint said", "wheel-check said"):
        assert words in told
