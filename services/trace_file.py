"""``headway trace``: fetch a live worker's timeline and write it as a trace file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from headway.services.errors import ServiceError, UsageError
from headway.services.worker_page import fetch_page


def fetch_trace(url: str) -> dict[str, Any]:
    """The trace of the worker whose metrics are served at ``url``.

    Raises UsageError for what is no such URL, NotReachableError when nobody answers, ServiceError when the
    one who answers is no worker or is still loading its model.
    """
    fetched = fetch_page(url, "trace", command="trace")
    try:
        read: Any = json.loads(fetched)
    except ValueError as error:
        raise ServiceError(f"{url} gives no trace: {error}") from None
    if not isinstance(read, dict):
        raise ServiceError(f"{url} gives no trace")
    trace = cast("dict[str, Any]", read)
    if not isinstance(trace.get("traceEvents"), list):
        raise ServiceError(f"{url} gives no trace")
    return trace


def is_step(event: Mapping[str, Any]) -> bool:
    """Whether an event of a trace is a step of the worker."""
    return bool(event["ph"] == "X" and event["name"].startswith("step "))


def check_folder(path: Path) -> None:
    """Raise before a long run what would fail after it: a folder that is not there."""
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}")


def write_trace(path: Path, trace: dict[str, Any]) -> None:
    """Write a trace; raises UsageError when the file cannot be written."""
    try:
        path.write_text(json.dumps(trace))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
