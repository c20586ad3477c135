"""Server-sent events: frames, comments, and the cursor that a reader resumes from."""

from __future__ import annotations

from typing import Final

import orjson
from starlette.datastructures import Headers, QueryParams

from headway.gateway.chunk_positions import read_position
from headway.gateway.errors import ApiError
from headway.queueing.events import START, Cursor

_BEHIND_ALL: Final = 10**14
"""A part number that no entry has: behind all with so many tokens."""

PING: Final = b": ping\n\n"
DONE: Final = b"data: [DONE]\n\n"

STREAM_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # nginx and its kin would otherwise collect 4 to 16 kB before they pass anything on.
    "x-accel-buffering": "no",
}


def frame(content: object, *, event_id: str | None = None, event: str | None = None) -> bytes:
    """One event; its JSON holds no line break, so one ``data:`` line is enough."""
    head = (f"id: {event_id}\n" if event_id else "") + (f"event: {event}\n" if event else "")
    return b"%sdata: %s\n\n" % (head.encode(), orjson.dumps(content))


def error_frame(error: ApiError, *, event: str | None = None) -> bytes:
    """The event that says why a stream ends early. Without an id: a reader resumes from what it has."""
    return frame(error.body(), event=event)


def resume_field(headers: Headers) -> str:
    """The field that says where a reader goes on."""
    return "Last-Event-ID" if headers.get("last-event-id") else "after"


def resume_cursor(headers: Headers, query: QueryParams) -> Cursor:
    """Where a reader goes on: ``Last-Event-ID``, else ``?after=``, else the start; raises ApiError 400.

    The header wins, since a browser reconnects to the same address with the header added. Who has a part of
    an event's chunks from an OpenAI stream gets the whole event.
    """
    text = headers.get("last-event-id") or query.get("after")
    if not text:
        return START
    place = read_position(text, field=resume_field(headers))
    return place.cursor if place.is_whole else Cursor(max(0, place.cursor.tokens - 1), _BEHIND_ALL)
