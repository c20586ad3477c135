"""The state dir of one ``headway up``: who holds it, where things lie in it, and what runs there now.

up.lock       flock held by the running ``headway up``; the kernel frees it however that process ends
up.json       what runs (0600, replaced atomically); absent after a clean stop
logs/         one log per process, bounded
redis/        the embedded server: configuration, append-only file, lock, socket
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from headway.services.errors import StartError
from headway.services.process import ProcessMark

MAX_SOCKET_PATH_BYTES = 103
"""sockaddr_un holds 108 bytes on Linux and 104 elsewhere, the closing NUL included."""


@dataclass(frozen=True, slots=True)
class RunningPart:
    """One process as ``up`` last saw it; ``mark`` None: not started, or not ours (an external server)."""

    mark: ProcessMark | None
    url: str

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Self:
        """Read back what ``asdict`` wrote."""
        return cls(_mark(fields["mark"]), fields["url"])


@dataclass(frozen=True, slots=True)
class RunningWorker:
    """One worker as ``up`` last saw it. State: starting | ready | draining | restarting."""

    worker_id: str
    mark: ProcessMark | None
    model: str
    state: str


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """The batch service as ``up`` last saw it. State: as a worker's."""

    mark: ProcessMark | None
    state: str


@dataclass(frozen=True, slots=True)
class UpState:
    """What one ``headway up`` runs. Claims in it are checked against living processes before use."""

    up: ProcessMark
    started_unix: int
    model: str
    ready: bool
    gateway: RunningPart
    redis: RunningPart
    is_redis_ours: bool
    """Whether the server is the embedded one; another's process is not ours to watch."""
    workers: tuple[RunningWorker, ...]
    batch: RunningBatch | None = None
    """None: this ``up`` runs without it."""

    def to_json(self) -> str:
        """The content of ``up.json``."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """Read ``up.json``; None when it is damaged or of another version."""
        try:
            fields = json.loads(text)
            up = _mark(fields["up"])
            if up is None:
                return None
            workers = tuple(
                RunningWorker(item["worker_id"], _mark(item["mark"]), item["model"], item["state"])
                for item in fields["workers"]
            )
            batch = fields.get("batch")
            return cls(
                up,
                fields["started_unix"],
                fields["model"],
                fields["ready"],
                RunningPart.parse(fields["gateway"]),
                RunningPart.parse(fields["redis"]),
                fields["is_redis_ours"],
                workers,
                None if batch is None else RunningBatch(_mark(batch["mark"]), batch["state"]),
            )
        except (ValueError, KeyError, TypeError):
            return None


def _mark(fields: dict[str, int] | None) -> ProcessMark | None:
    return None if fields is None else ProcessMark(fields["pid"], fields["start_ticks"])


class StateDir:
    """One state dir; ``prepare`` makes it, ``hold`` keeps it for this process alone."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root.expanduser()))
        self.logs = self.root / "logs"
        self.redis = self.root / "redis"
        self.state_file = self.root / "up.json"
        self._lock_file = self.root / "up.lock"
        self._lock: int | None = None

    def prepare(self) -> None:
        """Create the folders, for the user alone; raises StartError when that is not possible."""
        try:
            for folder in (self.root, self.logs, self.redis):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root) as probe:
                probe.write(b"headway")
        except OSError as error:
            raise StartError(
                f"the state dir {self.root} cannot be written: {error.strerror}",
                hint=_state_dir_hint(error),
            ) from None

    def hold(self) -> None:
        """Take the dir for this process until it ends; raises StartError that names the holder."""
        descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise self._held_by_another() from None
        self._lock = descriptor

    def _held_by_another(self) -> StartError:
        state = self.read()
        if state is None or not state.up.lives:
            return StartError(
                f"another headway up is starting or stopping in {self.root}", hint="try again in a moment"
            )
        return StartError(
            f"headway up already runs in {self.root} (pid {state.up.pid}, {state.gateway.url})",
            hint=f"use that one, or stop it: kill {state.up.pid}; or start a second one: "
            "headway up --state-dir OTHER --port OTHER",
        )

    def read(self) -> UpState | None:
        """The last state written here; None when there is none."""
        try:
            return UpState.from_json(self.state_file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            return None

    def read_live(self) -> UpState | None:
        """The state of a ``headway up`` that runs now; None when none does."""
        state = self.read()
        return state if state is not None and state.up.lives else None

    def write(self, state: UpState) -> None:
        """Replace the state file atomically, readable by the user alone (the URL may hold a password)."""
        fresh = self.state_file.with_suffix(".json.new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(state.to_json())
        fresh.replace(self.state_file)

    def forget(self) -> None:
        """Remove the state file after a clean stop."""
        self.state_file.unlink(missing_ok=True)

    def socket_path(self) -> Path:
        """Where the embedded server listens: in the dir, or in a short runtime dir when that is too deep."""
        inside = self.redis / "redis.sock"
        if len(os.fsencode(inside)) <= MAX_SOCKET_PATH_BYTES:
            return inside
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]
        for base in (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"):
            path = Path(base) / f"headway-{os.getuid()}-{digest}" / "redis.sock"
            if (
                os.path.isabs(base)
                and os.path.isdir(base)
                and len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES
            ):
                _make_private(path.parent)
                return path
        raise StartError(
            f"the path {inside} is too long for a unix socket, and no short runtime dir exists",
            hint="pass a shorter --state-dir",
        )


def _state_dir_hint(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "free some space on that disk, or pass --state-dir DIR on another one"
    return "pass a folder you own: headway up --state-dir DIR (or set HEADWAY_STATE_DIR)"


def _make_private(folder: Path) -> None:
    """Create a folder in a place that others may write to, and make sure that it is ours alone."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise StartError(
            f"{folder} cannot be made: {error.strerror}", hint="pass a shorter --state-dir"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StartError(
            f"{folder} exists and is not yours alone",
            hint="pass a shorter --state-dir, or remove that folder",
        )
