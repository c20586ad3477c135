"""One batch: a file of requests, worked through in the background. Its record is a log of facts.

Each fact (created, checked, cancelled, finalizing, outcome, told) is written once and never changed, each by
one atomic command. So nobody can undo what another process did: a cancel that meets the end of a batch
changes nothing, and of two processes that end the same batch one outcome counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, cast

import orjson

from headway.queueing.errors import UnreadableRecordError
from headway.queueing.record_fields import known_fields

BATCH_ID_PATTERN: Final = r"^batch_[A-Za-z0-9]{8,40}$"
MAX_LINES: Final = 50_000
MAX_INPUT_BYTES: Final = 200_000_000
ENDPOINTS: Final = ("/v1/chat/completions", "/v1/completions")
"""What the lines of a batch may ask for."""

EndState = Literal["completed", "failed", "expired", "cancelled"]


class BatchState(StrEnum):
    """OpenAI's states."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Tally:
    """Lines with an answer, lines with an error, and the tokens of both."""

    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.completed + other.completed,
            self.failed + other.failed,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )


def total(tallies: Iterable[Tally]) -> Tally:
    """The sum."""
    return sum(tallies, Tally())


@dataclass(frozen=True, slots=True)
class BatchFault:
    """Why a batch could not be worked through. ``line`` counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """The input is sound: what it holds, and where each part of it begins (bytes)."""

    at_ms: int
    lines: int
    part_lines: int
    """Lines of each part but the last."""
    offsets: tuple[int, ...]
    model: str | None = None
    """That of all lines, if it is one."""

    def lines_of(self, part: int) -> int:
        """How many lines a part has."""
        return min(self.part_lines, self.lines - part * self.part_lines)


@dataclass(frozen=True, slots=True)
class Part:
    """A committed part of the results: its files below the storage's root ("" where it has none)."""

    tally: Tally
    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a batch ended."""

    state: EndState
    at_ms: int
    tally: Tally = Tally()
    output_file_id: str | None = None
    error_file_id: str | None = None
    faults: tuple[BatchFault, ...] = ()


@dataclass(frozen=True, slots=True)
class NewBatch:
    """What its producer asked for."""

    batch_id: str
    tenant: str
    input_file_id: str
    endpoint: str
    window: str
    created_ms: int
    expires_ms: int
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    output_keep_seconds: float | None = None
    """How long its files are kept; None: as long as the operator set."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything known of a batch."""

    asked: NewBatch
    checked: Checked | None = None
    cancelling_ms: int = 0
    finalizing_ms: int = 0
    outcome: Outcome | None = None
    progress: Tally = Tally()
    """As of a moment ago; after the end, ``outcome`` has the exact numbers."""
    is_told: bool = False
    """Its end was handed to the tenant's webhooks."""

    @property
    def state(self) -> BatchState:
        """Where it is in its life."""
        if self.outcome is not None:
            return BatchState(self.outcome.state)
        if self.cancelling_ms:
            return BatchState.CANCELLING
        if self.checked is None:
            return BatchState.VALIDATING
        return BatchState.FINALIZING if self.finalizing_ms else BatchState.IN_PROGRESS

    @property
    def tally(self) -> Tally:
        """The lines done so far."""
        return self.progress if self.outcome is None else self.outcome.tally


def encode(fact: NewBatch | Checked | Part | Outcome | Tally) -> bytes:
    """A fact as JSON."""
    return orjson.dumps(asdict(fact))


def decode_batch(fields: Mapping[bytes, bytes]) -> Batch:
    """A batch from its record; raises UnreadableRecordError for what is none."""
    try:
        outcome, progress = fields.get(b"outcome"), fields.get(b"progress")
        checked = fields.get(b"checked")
        return Batch(
            asked=NewBatch(**known_fields(NewBatch, _object(fields[b"created"]))),
            checked=None if checked is None else _checked(checked),
            cancelling_ms=int(fields.get(b"cancelling", b"0")),
            finalizing_ms=int(fields.get(b"finalizing", b"0")),
            outcome=None if outcome is None else _outcome(outcome),
            progress=Tally() if progress is None else _tally(_object(progress)),
            is_told=b"told" in fields,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableRecordError(f"no record of a batch: {error}") from None


def decode_part(text: bytes) -> Part:
    """A committed part; raises UnreadableRecordError for what is none."""
    try:
        fields = _object(text)
        return Part(_tally(fields["tally"]), fields["output"], fields["errors"])
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableRecordError(f"no record of a batch's part: {error}") from None


def _checked(text: bytes) -> Checked:
    fields = _object(text)
    fields["offsets"] = tuple(fields["offsets"])
    return Checked(**known_fields(Checked, fields))


def _outcome(text: bytes) -> Outcome:
    fields = _object(text)
    fields["faults"] = tuple(BatchFault(**known_fields(BatchFault, fault)) for fault in fields["faults"])
    fields["tally"] = _tally(fields["tally"])
    return Outcome(**known_fields(Outcome, fields))


def _tally(record: Mapping[str, Any]) -> Tally:
    return Tally(**known_fields(Tally, record))


def _object(text: bytes) -> dict[str, Any]:
    fields: object = orjson.loads(text)
    if not isinstance(fields, dict):
        raise TypeError("no JSON object")
    return cast("dict[str, Any]", fields)
