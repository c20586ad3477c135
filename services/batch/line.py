"""One line of a batch's input: ``{"custom_id", "method", "url", "body"}``, and what is wrong with it."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from headway.queueing.batch import BatchFault
from headway.services.batch.storage import OpenFile

MAX_LINE_BYTES: Final = 4 << 20
"""As the largest request body that the gateway takes."""
MAX_ID_CHARS: Final = 512
_FIELDS: Final = {"custom_id", "method", "url", "body"}


@dataclass(frozen=True, slots=True)
class Line:
    """A request of a batch. ``number`` counts from 1, blank lines not counted."""

    number: int
    custom_id: str
    body: dict[str, object]
    size_bytes: int = 0


class LineError(Exception):
    """A line that is no request."""

    def __init__(self, fault: BatchFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class RawLine:
    """A line as it is in the file, and where it begins (bytes)."""

    number: int
    offset: int
    text: bytes

    @property
    def is_whole(self) -> bool:
        """Whether all of it was read; longer ones are not."""
        return len(self.text) <= MAX_LINE_BYTES


def raw_lines(opened: OpenFile, *, number: int = 1, offset: int = 0) -> Iterator[RawLine]:
    """The lines from where the file stands, blank ones left out; memory is bound to one line.

    A mark of UTF-8 at the very beginning, as some editors write it, is no part of the first one.
    """
    while text := opened.readline(MAX_LINE_BYTES + 1):
        begins, offset = offset, offset + len(text)
        if begins == 0 and number == 1:
            text = text.removeprefix(BOM_UTF8)
        if len(text) > MAX_LINE_BYTES:
            yield RawLine(number, begins, text)
            return
        if text.strip():
            yield RawLine(number, begins, text)
            number += 1


def read_line(raw: RawLine, endpoint: str) -> Line:
    """The request of a line for this endpoint; raises LineError."""
    if not raw.is_whole:
        raise _error(raw, "line_too_long", f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        parsed: object = orjson.loads(raw.text)
    except orjson.JSONDecodeError as error:
        message = f"the line is not valid JSON: {error.msg}, at column {error.colno}"
        raise _error(raw, "invalid_json_line", message) from None
    if not isinstance(parsed, dict):
        raise _error(raw, "invalid_json_line", "the line is not a JSON object")
    fields = cast("dict[str, Any]", parsed)
    if (unknown := next(iter(fields.keys() - _FIELDS), None)) is not None:
        raise _error(raw, "unknown_parameter", f"Unknown parameter: '{unknown[:100]}'.", unknown[:100])
    custom_id = fields.get("custom_id")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_ID_CHARS:
        what = "is missing" if custom_id is None else f"is a text of 1 to {MAX_ID_CHARS} characters"
        raise _error(raw, "invalid_custom_id", f"'custom_id' {what}", "custom_id")
    if fields.get("method", "POST") != "POST":
        raise _error(raw, "invalid_method", "'method' is POST", "method")
    if fields.get("url") != endpoint:
        raise _error(raw, "mismatched_url", f"'url' must be {endpoint}, as the batch's endpoint says", "url")
    body = fields.get("body")
    if not isinstance(body, dict):
        raise _error(raw, "invalid_body", "'body' is a JSON object: the request itself", "body")
    return Line(raw.number, custom_id, cast("dict[str, object]", body), len(raw.text))


def _error(raw: RawLine, code: str, message: str, param: str | None = None) -> LineError:
    return LineError(BatchFault(code, message, raw.number, param))
