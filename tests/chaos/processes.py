"""The processes that are struck, workers and a gateway, each with a clock and a supervisor of its own."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

PROGRAM: Final = """
import json, mmap, struct, sys, time
kind, clock_path, settings = json.loads(sys.argv[1])
with open(clock_path, "rb") as file:
    offset = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
true_time, true_time_ns = time.time, time.time_ns
# Before anything else is imported: whoever keeps time.time keeps this one. Monotonic clocks never jump.
time.time = lambda: true_time() + struct.unpack("d", offset)[0]
time.time_ns = lambda: true_time_ns() + int(1e9 * struct.unpack("d", offset)[0])
if kind == "worker":
    from headway.services.settings import WorkerSettings as Settings
    from headway.services.worker import run_worker as run
else:
    from headway.services.gateway_process import run_gateway as run
    from headway.services.settings import GatewaySettings as Settings
sys.exit(run(Settings(**settings)))
"""


class Clock:
    """A process's wall clock: how far it is off can change while it runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(struct.pack("d", 0.0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    def shift(self, seconds: float) -> None:
        """Set how far it is off from now on."""
        self._map[:] = struct.pack("d", seconds)


class Place:
    """Where one process runs; the next one takes it when the last has ended, as a supervisor would see to."""

    def __init__(self, kind: str, name: str, folder: Path, settings: dict[str, Any]) -> None:
        self.name = name
        self.clock = Clock(folder / f"{name.replace(' ', '-')}.clock")
        self.log_path = folder / f"{name.replace(' ', '-')}.log"
        self.starts = 0
        self.unexpected_ends: list[str] = []
        self._kind = kind
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._struck = 0

    @property
    def pid(self) -> int | None:
        """The process that runs here now."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> None:
        self.starts += 1
        settings = dict(self._settings)
        if self._kind == "worker":
            settings["worker_id"] = f"w{self.name.rpartition(' ')[2]}-{self.starts}"
        argument = json.dumps([self._kind, str(self.clock.path), settings])
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, argument], stdout=log, stderr=log
            )

    async def end(self, how: signal.Signals, pause_seconds: float) -> None:
        """End the process by a signal, and start the next one a little later."""
        process, self._struck = self._process, self._struck + 1
        try:
            if process is not None and process.poll() is None:
                process.send_signal(how)
                process.send_signal(signal.SIGCONT)  # a stopped one would never obey
                await self._ended(process)
            await asyncio.sleep(pause_seconds)
            if self._process is process:
                self.start()
        finally:
            self._struck -= 1

    async def pause(self, seconds: float) -> None:
        """Stop the process in its tracks for a while."""
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        if self.pid == pid:
            os.kill(pid, signal.SIGCONT)

    async def watch(self) -> None:
        """Start the next process when one ends by itself, and keep how it ended."""
        while True:
            await asyncio.sleep(0.1)
            process = self._process
            if process is not None and process.poll() is not None and not self._struck:
                self.unexpected_ends.append(f"{self.name} #{self.starts}: exit code {process.returncode}")
                self.start()

    async def _ended(self, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            await asyncio.sleep(0.02)

    def remove(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
