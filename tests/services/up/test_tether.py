"""A tethered process does not outlive the one that started it, however that one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.services.up.headway_up import eventually

from headway.services.process import TETHER, ProcessMark

PARENT = """
import os, subprocess, sys, time
tether, number, mode, *rest = sys.argv[1:]
child = subprocess.Popen([sys.executable, "-I", "-S", tether, str(os.getpid()), number, mode, *rest])
print(child.pid, flush=True)
time.sleep(60)
"""


def start(*arguments: str) -> tuple[subprocess.Popen[str], ProcessMark]:
    """A parent, and its tethered child's mark."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(TETHER), *arguments], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    mark = ProcessMark.of(int(parent.stdout.readline()))
    assert mark is not None
    return parent, mark


def end(parent: subprocess.Popen[str]) -> None:
    parent.kill()
    parent.wait()
    assert parent.stdout is not None
    parent.stdout.close()


def test_the_command_gets_the_signal_when_its_parent_is_killed(tmp_path: Path) -> None:
    said = tmp_path / "said"
    script = (
        f"trap 'echo flushed > {said}; exit 0' TERM; echo {{pid}} $$ > {said}.pid; "
        "while :; do sleep 0.02; done"
    )
    parent, child = start(str(int(signal.SIGTERM)), "exec", "sh", "-c", script)
    # The pid is that of the command itself, and its arguments may name it.
    eventually(
        "it runs", lambda: (tmp_path / "said.pid").exists() and (tmp_path / "said.pid").read_text() != "", 10
    )
    assert (tmp_path / "said.pid").read_text().split() == [str(child.pid)] * 2
    end(parent)
    eventually("it is gone", lambda: not child.lives, 5)
    assert said.read_text() == "flushed\n"


def test_a_parent_that_died_before_the_tether_was_tied_is_noticed() -> None:
    nobody = subprocess.run(["true"], check=True)
    assert nobody.returncode == 0
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            str(TETHER),
            "1" if os.getppid() != 1 else "2",
            "9",
            "exec",
            "sleep",
            "60",
        ],
        check=False,
        timeout=10,
    )
    assert done.returncode == 128 + 9


def test_a_leash_ends_with_the_process_it_watches_and_passes_the_parents_death_on() -> None:
    stranger = subprocess.Popen(["sleep", "60"])
    mark = ProcessMark.of(stranger.pid)
    assert mark is not None
    parent, leash = start(str(int(signal.SIGTERM)), "leash", str(mark.pid), str(mark.start_ticks))
    time.sleep(0.2)
    assert leash.lives
    end(parent)
    assert stranger.wait(timeout=5) == -signal.SIGTERM
    eventually("the leash ends too", lambda: not leash.lives, 5)


def test_a_leash_on_a_reused_process_id_ends_at_once_and_harms_nobody() -> None:
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        parent, leash = start(str(int(signal.SIGTERM)), "leash", str(stranger.pid), "1")
        eventually("the leash ends", lambda: not leash.lives, 5)
        end(parent)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_mark_tells_a_process_from_a_later_one_with_the_same_id() -> None:
    mark = ProcessMark.of(os.getpid())
    assert mark is not None
    assert mark.lives
    assert not ProcessMark(mark.pid, mark.start_ticks + 1).lives
    assert ProcessMark.of(2**22 + 1) is None
