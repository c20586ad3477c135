"""What ``headway up`` tells about a process that died and came back."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

from tests.services.up.headway_up import eventually, running_up


def test_the_time_of_a_restarted_worker_counts_from_its_death(tmp_path: Path) -> None:
    with running_up(tmp_path) as up:
        began = time.monotonic()
        os.kill(up.worker_pid, signal.SIGKILL)

        def ready_seconds() -> list[str]:
            return re.findall(r"^  worker +ready +([0-9.]+) s ", up.output, re.MULTILINE)

        eventually("it is ready again", lambda: len(ready_seconds()) == 2)
        # The whole start lies before the kill: with the clock of `up` itself the figure would be larger.
        assert float(ready_seconds()[1]) <= time.monotonic() - began + 0.1
