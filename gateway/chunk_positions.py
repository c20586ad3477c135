"""Positions in a streamed OpenAI answer, which its chunks carry as ids: a reader goes on after any of them.

An event of the job may bring several chunks. The last one has the event's own position, such as ``12-0``;
those before it are parts of it, ``12-0.1`` and so on. A reader that resumes gets every chunk behind the one
that it has, from any gateway, since the chunks follow from the job's events alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers

from headway.gateway.errors import invalid_request
from headway.queueing.errors import InvalidCursorError
from headway.queueing.events import Cursor

_WHOLE: Final = 1 << 62
_MOST_DIGITS: Final = 6


@dataclass(frozen=True, slots=True, order=True)
class ChunkPosition:
    """A chunk's place: its event, and its number among the event's chunks, from 1."""

    cursor: Cursor
    part: int = _WHOLE
    """The last chunk stands for the whole event."""

    @property
    def is_whole(self) -> bool:
        """Whether it is its event's last chunk."""
        return self.part == _WHOLE

    def __str__(self) -> str:
        return str(self.cursor) if self.is_whole else f"{self.cursor}.{self.part}"


def position_of(cursor: Cursor, index: int, count: int) -> ChunkPosition:
    """The place of the chunk with this index, from 0, of the event's ``count`` chunks."""
    return ChunkPosition(cursor, _WHOLE if index == count - 1 else index + 1)


def read_position(text: str, *, field: str = "Last-Event-ID") -> ChunkPosition:
    """A chunk's id; raises ApiError 400 that names the field it was sent in."""
    event, dot, part = text.partition(".")
    try:
        if not dot or not part.isascii() or not part.isdigit() or len(part) > _MOST_DIGITS:
            return ChunkPosition(Cursor.parse(text))  # whose refusal says how a position is written
        return ChunkPosition(Cursor.parse(event), int(part))
    except InvalidCursorError as error:
        raise invalid_request(f"'{field}': {error}", param=field, code="invalid_cursor") from None


def check_published(after: ChunkPosition, end: Cursor) -> None:
    """Raise ApiError 400 for a position behind an answer's end: nothing would look like the rest of it."""
    if after > ChunkPosition(end):
        raise invalid_request(
            f"'Last-Event-ID' {after} lies beyond the end of this answer, {end}: send an id of its events",
            param="Last-Event-ID",
            code="invalid_cursor",
        )


def resumed_position(headers: Headers, *, job_count: int) -> ChunkPosition | None:
    """After which chunk a request wants its stream to go on; None: from the start.

    Raises ApiError 400 where it could not: without an idempotency key the request would be another job, and
    with several prompts a position would not say which.
    """
    text = headers.get("last-event-id")
    if not text:
        return None
    if "idempotency-key" not in headers:
        raise invalid_request(
            "a stream goes on after 'Last-Event-ID' only with the 'Idempotency-Key' of the request that "
            "began it: without one this would be a new answer",
            param="Last-Event-ID",
        )
    if job_count > 1:
        raise invalid_request(
            "a stream of several prompts cannot be resumed: send one prompt in a request",
            param="Last-Event-ID",
            code="unsupported",
        )
    return read_position(text)
