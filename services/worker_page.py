"""Fetches a page of a worker's metrics port, and says what is wrong where it cannot."""

from __future__ import annotations

from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, urlsplit
from urllib.request import urlopen

from headway.services.errors import NotReachableError, ServiceError, UsageError

FETCH_SECONDS: Final = 10.0


def fetch_page(url: str, page: str, *, command: str) -> str:
    """The text of ``page`` of the worker whose metrics are served at ``url``; ``command``: for the hint.

    Raises UsageError for what is no such URL, NotReachableError when nobody answers, ServiceError when the
    one who answers is no worker or is still loading its model.
    """
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
    except ValueError:  # a bracket that is not closed
        parts = SplitResult("", "", "", "", "")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(
            f"{url!r} is no worker's metrics URL", hint=f"headway {command} http://127.0.0.1:9100"
        )
    place = f"{parts.scheme}://{parts.netloc}/{page}"
    try:
        with urlopen(place, timeout=FETCH_SECONDS) as answer:
            read: bytes = answer.read()
    except HTTPError as error:
        raise ServiceError(
            f"{place} answers {error.code} {error.reason}: is it a worker's metrics port?"
        ) from None
    except (URLError, OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise NotReachableError(
            f"nobody answers at {place}: {reason}", hint="headway worker --metrics-port PORT serves it"
        ) from None
    return read.decode(errors="replace")
