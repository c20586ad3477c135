"""Real batch workers (`headway batch worker`), to be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

COMMAND = [sys.executable, "-P", "-m", "headway.services.cli"]
ROOT = Path(__file__).parents[3]


@dataclass(slots=True)
class BatchFleet:
    """Processes of one test; ``close`` ends every one that it started."""

    redis_url: str
    folder: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    @property
    def files(self) -> str:
        return str(self.folder / "files")

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A ``headway`` process; its output goes to ``log`` in the folder."""
        environment = os.environ | {
            "HEADWAY_REDIS_URL": self.redis_url,
            "HEADWAY_LOG_FORMAT": "json",
            "PYTHONPATH": str(ROOT / "src"),
        }
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen([*COMMAND, *arguments], stdout=log, stderr=log, env=environment)
        self.running.append(process)
        return process

    def start_batch_worker(self) -> subprocess.Popen[bytes]:
        """A batch worker that serves, so that a kill meets it at its work."""
        before = self.log().count('"event":"ready"')
        process = self.start(
            *("batch", "worker", "--files", self.files, "--webhook-allow-private"),
            *("--heartbeat-file", str(self.folder / "heartbeat"), "--metrics-port", "0"),
        )
        deadline = time.monotonic() + 30
        while self.log().count('"event":"ready"') == before:
            assert process.poll() is None, self.log()[-3000:]
            assert time.monotonic() < deadline, self.log()[-3000:]
            time.sleep(0.02)
        return process

    def metrics_url(self) -> str:
        """Of the batch worker that was started last."""
        served = [line for line in self.log().splitlines() if '"metrics_served"' in line]
        url: str = json.loads(served[-1])["url"]
        return url

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a process as a crash would."""
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.running.remove(process)

    def close(self) -> None:
        for process in self.running:
            process.kill()
        for process in self.running:
            process.wait()
