"""Between values and what lies in Redis: stream entries, terminal entry, answer, record, card.

The formats are part of the wire protocol (docs/wire-protocol.md); lua/ending.lua writes the same JSON.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any, cast

import orjson

from headway.queueing.errors import InvalidCursorError
from headway.queueing.events import (
    ChoiceEnd,
    ChoiceResult,
    Cursor,
    EndEvent,
    EndReason,
    JobError,
    JobResult,
    JobState,
    JobStatus,
    PastClaim,
    StreamEvent,
    TokenEvent,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from headway.queueing.ids import model_of
from headway.queueing.intake import read_metadata
from headway.queueing.messages import Priority
from headway.queueing.server_errors import WrongTypeError
from headway.queueing.worker_card import WorkerCard

_STATES = frozenset(state.encode() for state in JobState)
_BANDS = frozenset(map(str, Priority))
_REASONS = frozenset(map(str, EndReason))
_LOG_LINE = re.compile(r"([0-9]{1,15}) ([0-9]{1,15}) ([a-z]+) ([0-9]{1,15}) (.*)")


def entry_arguments(event: TokenEvent) -> tuple[str, ...]:
    """One entry as the emit function takes it: id, i, t, k, e, l."""
    cursor, token_ids = event.cursor, event.token_ids
    return (
        f"{cursor.tokens}-{cursor.part}",
        str(event.choice),
        event.text,
        str(token_ids[0]) if len(token_ids) == 1 else ",".join(map(str, token_ids)),
        event.finish_reason or "",
        _dumps([_logprob_row(logprob) for logprob in event.logprobs]) if event.logprobs else "",
    )


def decode_events(reply: Any) -> tuple[StreamEvent, ...]:
    """The entries of an XRANGE reply; ones that are not ours are left out."""
    events = (_decode_event(entry_id, pairs(flat)) for entry_id, flat in reply)
    return tuple(event for event in events if event is not None)


def pairs(flat: list[bytes]) -> dict[str, bytes]:
    """Field and value pairs of a flat reply."""
    names = iter(flat)
    return {name.decode(errors="replace"): value for name, value in zip(names, names, strict=True)}


def _decode_event(entry_id: bytes, entry: dict[str, bytes]) -> StreamEvent | None:
    try:
        cursor = Cursor.parse(entry_id.decode())
        ending = entry.get("e", b"")
        if ending.startswith(b"{"):
            return _decode_end(cursor, orjson.loads(ending))
        return TokenEvent(
            cursor=cursor,
            choice=int(entry.get("i", 0)),
            text=entry["t"].decode(errors="replace"),
            token_ids=tuple(map(int, entry["k"].split(b","))) if entry["k"] else (),
            logprobs=_logprobs(orjson.loads(entry["l"])) if "l" in entry else (),
            finish_reason=EndReason(ending.decode()) if ending else None,
        )
    except (KeyError, ValueError, TypeError, InvalidCursorError):
        return None  # somebody else's entry must not stop a reader or the next claim


# -- the end ------------------------------------------------------------------------------------------


def encode_end(end: EndEvent) -> str:
    """Field ``e`` of the terminal entry."""
    return _dumps(
        {
            "reason": end.reason,
            "choices": [
                {"finish_reason": choice.finish_reason, "tail": choice.tail} for choice in end.choices
            ],
            "usage": asdict(end.usage),
            "error": end.error and asdict(end.error),
        }
    )


def _decode_end(cursor: Cursor, end: dict[str, Any]) -> EndEvent:
    return EndEvent(
        cursor=cursor,
        reason=EndReason(end["reason"]),
        choices=tuple(
            ChoiceEnd(EndReason(choice["finish_reason"]), choice["tail"]) for choice in end["choices"]
        ),
        usage=Usage(**end["usage"]),
        error=_error(end["error"]),
    )


def encode_result(result: JobResult) -> str:
    """The answer as kept under ``r:``."""
    return _dumps(
        {
            "reason": result.reason,
            "choices": [
                {
                    "text": choice.text,
                    "token_ids": choice.token_ids,
                    "finish_reason": choice.finish_reason,
                    "logprobs": [_logprob_row(logprob) for logprob in choice.logprobs],
                }
                for choice in result.choices
            ],
            "usage": asdict(result.usage),
            "error": result.error and asdict(result.error),
        }
    )


def decode_result(job_id: str, text: bytes) -> JobResult | None:
    """An answer as kept under ``r:``; None for what is none."""
    try:
        return _decode_result(job_id, orjson.loads(text))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None


def _decode_result(job_id: str, kept: dict[str, Any]) -> JobResult:
    return JobResult(
        job_id=job_id,
        reason=EndReason(kept["reason"]),
        choices=tuple(
            ChoiceResult(
                text=choice["text"],
                token_ids=tuple(choice["token_ids"]),
                finish_reason=EndReason(choice["finish_reason"]),
                logprobs=_logprobs(choice["logprobs"]),
            )
            for choice in kept["choices"]
        ),
        usage=Usage(**kept["usage"]),
        error=_error(kept["error"]),
    )


def encode_error(error: JobError | None) -> str:
    """The record's field ``error``."""
    return _dumps(asdict(error)) if error else ""


def _error(fields_: dict[str, Any] | None) -> JobError | None:
    return JobError(**fields_) if fields_ else None


# -- log-probabilities: [id, text, bytes as hex, logprob, [alternatives without the last item]] -----------


def _logprob_row(logprob: TokenLogprob) -> list[Any]:
    top = [[best.token_id, best.text, best.raw.hex(), best.logprob] for best in logprob.top]
    return [logprob.token_id, logprob.text, logprob.raw.hex(), logprob.logprob, top]


def _logprobs(rows: Iterable[list[Any]]) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            row[0],
            row[1],
            bytes.fromhex(row[2]),
            _probability(row[3]),
            tuple(TopLogprob(b[0], b[1], bytes.fromhex(b[2]), _probability(b[3])) for b in row[4]),
        )
        for row in rows
    )


def _probability(value: float | None) -> float:
    return -math.inf if value is None else value  # JSON has no infinity: a token that cannot be drawn


# -- records and cards --------------------------------------------------------------------------------


def decode_status(job_id: str, record_reply: Any, entries: Any) -> JobStatus | None:
    """A job's record and the newest entries of its token stream; None for no record, or something else there.

    Fields that are missing or unreadable count as not set.
    """
    if isinstance(record_reply, WrongTypeError):
        return None
    if isinstance(record_reply, Exception):
        raise record_reply
    record = pairs(record_reply)
    if record.get("state") not in _STATES:
        return None
    lane = job_id.rpartition(":")[0]

    def text(name: str) -> str:
        return record.get(name, b"").decode(errors="replace")

    def number(name: str) -> int:
        return int(text(name)) if text(name).isdecimal() else 0

    return JobStatus(
        job_id=job_id,
        model=model_of(lane),
        tenant=text("tenant"),
        priority=Priority(text("band")) if text("band") in _BANDS else Priority.STANDARD,
        state=JobState(text("state")),
        committed_tokens=number("n") or _committed(entries),
        attempts=number("attempts"),
        worker=text("worker") or None,
        created_ms=number("created"),
        started_ms=number("started"),
        finished_ms=number("finished"),
        deadline_ms=number("deadline"),
        cancel_reason=text("cancel") or None,
        reason=EndReason(text("reason")) if text("reason") in _REASONS else None,
        error=_read_error(record.get("error", b"")),
        on_disconnect=text("on_disconnect") or "cancel",
        metadata=_metadata(text("metadata")),
        claimed_ms=number("claimed"),
        first_token_ms=number("first"),
        history=_history(text("log")),
        retry_of=f"{lane}:{text('parent')}" if text("parent") else None,
        reserved=text("reserved"),
    )


def _read_error(text: bytes) -> JobError | None:
    try:
        return _error(orjson.loads(text)) if text else None
    except (ValueError, TypeError):
        return None


def _committed(entries: Any) -> int:
    """The tokens of the newest entry that is ours: a token stream counts itself. The newest comes first."""
    if isinstance(entries, Exception):
        return 0  # it is no stream, so nothing is committed
    ours = (event.cursor.tokens for entry in entries for event in decode_events([entry]))
    return next(ours, 0)


def _history(log: str) -> tuple[PastClaim, ...]:
    lines = (_LOG_LINE.match(line) for line in log.splitlines())
    return tuple(
        PastClaim(found[5], int(found[1]), int(found[2]), found[3], int(found[4])) for found in lines if found
    )


def _metadata(text: str) -> dict[str, str]:
    try:
        return read_metadata(orjson.loads(text or "{}"))
    except orjson.JSONDecodeError:
        return {}


def encode_card(card: WorkerCard, ttl_ms: int) -> str:
    """A worker's card as kept under ``w:`` for ``ttl_ms`` from this heartbeat on."""
    kept = asdict(card)
    del kept["heartbeat_age_seconds"]
    return _dumps(kept | {"ttl_ms": ttl_ms})


def decode_card(text: bytes, left_ms: int) -> WorkerCard | None:
    """A card that lapses in ``left_ms``; None for one that another version wrote without what we need."""
    try:
        kept = cast("dict[str, Any]", orjson.loads(text))
        age_ms = max(0, int(kept.get("ttl_ms", left_ms)) - left_ms)
        kept["heartbeat_age_seconds"] = age_ms / 1000
        known = {field.name for field in fields(WorkerCard)}
        return WorkerCard(**{name: value for name, value in kept.items() if name in known})
    except (ValueError, KeyError, TypeError):
        return None


def _dumps(value: Any) -> str:
    return orjson.dumps(value).decode()
