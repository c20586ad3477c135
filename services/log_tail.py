"""The logs of our children, read for a person: what went wrong, without the rest.

Children log JSON lines (``services/logs.py``); the embedded server has its own format, and a Python process
that breaks before its logging is set up writes plain text.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MAX_LOG_BYTES: Final = 16 << 20
"""A log over this size is moved to ``.1`` and started anew."""
MAX_WORDS: Final = 12
"""Lines shown of a process that could not start."""

_SERVER_LINE: Final = re.compile(
    r"^\d+:(?:[A-Z] \d+ \w+ \d{4} [\d:.]+ ([.\-*#])|signal-handler \(\d+\)) (.*)$"
)
_LOUD: Final = ("warning", "error", "critical", "exception")
_FRAME_FIELDS: Final = (
    "level",
    "event",
    "timestamp",
    "logger",
    "worker",
    "exception",
    "exc_info",
    "error",
    "hint",
)
_EXPECTED_SERVER_WARNINGS: Final = (
    "WARNING Memory overcommit",
    "WARNING: ",
    "ready to exit",
    "Received SIGTERM",
    "User requested shutdown",
    "Warning: no config",
)
"""What a server says at "warning" level about every ordinary start and stop."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One log line, readable: level (None: not structured), the message with its fields."""

    level: str | None
    message: str

    @property
    def is_loud(self) -> bool:
        """Whether somebody should see it without asking for it."""
        return self.level is None or self.level in _LOUD


def read_line(text: str) -> LogLine | None:
    """Parse one line of any child's log; None when it says nothing."""
    text = text.rstrip()
    if not text:
        return None
    server = _SERVER_LINE.match(text)
    if server is not None:
        quiet = server[1] != "#" or any(part in server[2] for part in _EXPECTED_SERVER_WARNINGS)
        return LogLine("info" if quiet else "warning", server[2])
    if text.startswith("{"):
        try:
            return _structured(json.loads(text))
        except ValueError:
            pass
    return LogLine(None, text)


def _structured(fields: dict[str, Any]) -> LogLine:
    """``event: error; try: hint  name=value …``."""
    message = str(fields.get("event", "")).replace("_", " ")
    exception = str(fields.get("exception") or "").strip()
    # The last line of a traceback names the error; the file holds the rest.
    cause = fields.get("error") or (exception.splitlines()[-1] if exception else None)
    if cause:
        message += f": {cause}"
    if fields.get("hint"):
        message += f"; try: {fields['hint']}"
    rest = [f"{name}={value}" for name, value in fields.items() if name not in _FRAME_FIELDS]
    return LogLine(str(fields.get("level", "info")), "  ".join([message, *rest]))


def last_words(path: Path, offset: int = 0) -> list[str]:
    """What a process that has ended said last, from an offset of its log on; its errors when it named any."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(offset if offset <= size else 0)  # smaller: it was moved aside meanwhile
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line for line in map(read_line, text.splitlines()) if line is not None]
    errors = [line for line in lines if line.level in ("error", "critical", "exception")]
    loud = [line for line in lines if line.is_loud]
    chosen = errors or loud or lines
    return [line.message for line in deque(chosen, maxlen=MAX_WORDS)]


class LogFollower:
    """Reads what was added to a log since the last look, and keeps the file within its bound."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = path.stat().st_size if path.exists() else 0
        self._rest = b""

    def new_lines(self) -> Iterator[LogLine]:
        """The complete lines added since the last call."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._offset:  # somebody truncated it
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                added = file.read()
        except OSError:
            return
        self._offset += len(added)
        *lines, self._rest = (self._rest + added).split(b"\n")
        for raw in lines:
            line = read_line(raw.decode("utf-8", "replace"))
            if line is not None:
                yield line

    def bound(self) -> None:
        """Move a log that has grown too long aside. Its writer appends, so it goes on in the emptied file."""
        if self._offset > MAX_LOG_BYTES:
            shutil.copyfile(self.path, self.path.with_suffix(".log.1"))
            with self.path.open("r+b") as file:
                file.truncate(0)
            self._offset, self._rest = 0, b""
