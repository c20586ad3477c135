"""``headway trace``: fetch a live worker's timeline and write it as a trace file."""

from __future__ import annotations

import json
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, cast
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, urlsplit
from urllib.request import urlopen

from headway.services.errors import NotReachableError, ServiceError, UsageError

FETCH_SECONDS: Final = 10.0


def fetch_trace(url: str) -> dict[str, Any]:
    """The trace of the worker whose metrics are served at ``url``.

    Raises UsageError for what is no such URL, NotReachableError when nobody answers, ServiceError when the
    one who answers is no worker or is still loading its model.
    """
    page = _page(url)
    try:
        with urlopen(page, timeout=FETCH_SECONDS) as answer:
            read: Any = json.load(answer)
    except HTTPError as error:
        raise ServiceError(
            f"{page} answers {error.code} {error.reason}: is it a worker's metrics port?"
        ) from None
    except (URLError, OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise NotReachableError(
            f"nobody answers at {page}: {reason}", hint="headway worker --metrics-port PORT serves it"
        ) from None
    except ValueError as error:
        raise ServiceError(f"{page} gives no trace: {error}") from None
    if not isinstance(read, dict):
        raise ServiceError(f"{page} gives no trace")
    trace = cast("dict[str, Any]", read)
    if not isinstance(trace.get("traceEvents"), list):
        raise ServiceError(f"{page} gives no trace")
    return trace


def _page(url: str) -> str:
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
    except ValueError:  # a bracket that is not closed
        parts = SplitResult("", "", "", "", "")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"{url!r} is no worker's metrics URL", hint="headway trace http://127.0.0.1:9100")
    return f"{parts.scheme}://{parts.netloc}/trace"


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
