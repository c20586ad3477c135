"""The supervisor's own log: JSON lines of what it did and why, beside those of its children."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from headway.services.log_tail import MAX_LOG_BYTES


class Journal:
    """Appends events to one file; a full disk is no reason to stop serving."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, event: str, *, level: str = "info", **fields: object) -> None:
        """One event, in the form of the other processes' logs."""
        line = {"timestamp": datetime.now(UTC).isoformat(), "level": level, "event": event, **fields}
        try:
            if self._path.exists() and self._path.stat().st_size > MAX_LOG_BYTES:
                self._path.replace(self._path.with_suffix(".log.1"))
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, default=str) + "\n")
        except OSError:
            return
