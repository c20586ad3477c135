"""The processes of the readers' benchmark: a server, workers of the scripted model, one gateway."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

from headway.services.embedded import EmbeddedOptions, EmbeddedServer, find_server_binary
from headway.services.state import StateDir

START_SECONDS: Final = 60.0
CLOCK_TICKS: Final = 100
"""Of /proc, per second."""


@dataclass(frozen=True)
class Process:
    """One process of the service."""

    name: str
    pid: int

    def rss_bytes(self) -> int:
        """Its resident memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise SystemExit(f"{self.name} has ended")

    def cpu_seconds(self) -> float:
        """CPU time so far, of all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


class Service:
    """Everything that runs, in a folder of its own."""

    def __init__(self, folder: Path, stack: ExitStack, *gateway_options: str) -> None:
        self._folder = folder
        self._gateway_options = gateway_options
        self._stack = stack
        state = StateDir(folder / "state")
        state.prepare()
        embedded = EmbeddedServer(state, EmbeddedOptions())
        embedded.write_config()
        self.url = embedded.url
        self.server = self._start("server", [str(find_server_binary()), str(state.redis / "valkey.conf")])
        stack.callback(embedded.tidy)
        self.workers: list[Process] = []
        self.start_gateway()

    @property
    def processes(self) -> tuple[Process, ...]:
        """All of them."""
        return (self.gateway, self.server, *self.workers)

    def start_gateway(self) -> None:
        """Have a gateway from here on that has not served anybody; an earlier one stays."""
        self.port = free_port()
        gateway = ["gateway", "--redis-url", self.url, "--port", str(self.port), "--log-level", "warning"]
        gateway += self._gateway_options
        self.gateway = self._headway(f"gateway {self.port}", gateway, "gateway")
        self.wait_for(self.port, "/livez")

    def add_workers(self, count: int, model: str, *, served_name: str, sequences: int) -> None:
        """Start workers and wait until they take jobs."""
        ports: list[int] = []
        for _ in range(count):
            ports.append(free_port())
            command = ["worker", "--redis-url", self.url, "--model", model, "--served-name", served_name]
            command += ["--max-sequences", str(sequences), "--max-batch-tokens", str(64 * sequences)]
            command += ["--metrics-port", str(ports[-1]), "--log-level", "warning"]
            self.workers.append(self._headway(f"worker {len(self.workers) + 1}", command))
        for port in ports:
            self.wait_for(port, "/readyz")

    def add(self, name: str, *arguments: str) -> Process:
        """Start another ``headway`` process."""
        process = self._headway(name, [*arguments, "--redis-url", self.url, "--log-level", "warning"])
        self.workers.append(process)
        return process

    def get(self, path: str, *, port: int | None = None, timeout: float = 30.0) -> str:
        """What the gateway answers."""
        with urlopen(f"http://127.0.0.1:{port or self.port}{path}", timeout=timeout) as reply:
            body: bytes = reply.read()
            return body.decode()

    def wait_for(self, port: int, path: str) -> None:
        """Return once this page is answered with a 200."""

        def answers() -> bool:
            try:
                self.get(path, port=port, timeout=5.0)
            except (URLError, OSError):
                return False
            return True

        wait_until(answers, START_SECONDS, f"nothing answers {path} at port {port}: {self._logs()}")

    def _headway(self, log: str, arguments: Sequence[str], name: str = "") -> Process:
        return Process(
            name or log, self._start(log, [sys.executable, "-m", "headway.services.cli", *arguments]).pid
        )

    def _start(self, name: str, command: Sequence[str]) -> Process:
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self._stack.enter_context(ended(process))
        return Process(name, process.pid)

    def _logs(self) -> str:
        return "\n".join(f"{log.name}: {log.read_text()[-500:]}" for log in self._folder.glob("*.log"))


@contextmanager
def ended(process: subprocess.Popen[Any]) -> Generator[subprocess.Popen[Any]]:
    """The process, gone afterwards."""
    with process:
        try:
            yield process
        finally:
            process.terminate()
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(is_so: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Return once it is so; exits with a message when it is not in time."""
    give_up = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > give_up:
            raise SystemExit(otherwise)
        time.sleep(0.1)
