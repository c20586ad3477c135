"""What travels back: token entries, the one terminal entry, and what a job's record says.

A stream position is a cursor ``<tokens>-<part>``: how many tokens of the whole job (all choices together)
are committed up to and including the entry, and a part number for entries that bring no new token (0 for
token entries, 1 for the terminal entry). The server refuses a position that is not larger than the last
one, so neither a retried write, nor a zombie, nor a resumed worker can repeat output.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from headway.queueing.errors import InvalidCursorError
from headway.queueing.messages import Priority

_CURSOR = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?\Z")


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A position in a token stream; ``str()`` is the Redis entry id and the SSE event id."""

    tokens: int = 0
    part: int = 0

    def __str__(self) -> str:
        return f"{self.tokens}-{self.part}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"12"`` or ``"12-1"``; raises InvalidCursorError for anything else."""
        match = _CURSOR.match(text)
        if match is None:
            raise InvalidCursorError(
                f"cursor {text[:40]!r} is not a stream position; send the id of the last event you have, "
                "such as 12-0, or 0 to read from the start",
                param="cursor",
                code="invalid_cursor",
            )
        return cls(int(match[1]), int(match[2] or 0))


START = Cursor(0, 0)


class EndReason(StrEnum):
    """Why a job ended. Every accepted job gets exactly one."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"


class JobState(StrEnum):
    """Where a job is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One alternative at a position: token id, its text bytes, its log-probability (natural log)."""

    token_id: int
    text: str
    raw: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The chosen token's log-probability and the most likely alternatives, best first."""

    token_id: int
    text: str
    raw: bytes
    logprob: float
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """New tokens of one choice.

    ``text`` may be empty while half a character or a possible stop string is held back.
    """

    cursor: Cursor
    choice: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: EndReason | None = None
    """Set on the entry that ends this choice."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts: ``completion_tokens`` equals the tokens published over all choices."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job failed, worded for its producer. ``code`` is stable; ``param`` names a field at fault."""

    code: str
    message: str
    param: str | None = None

    @property
    def is_callers_fault(self) -> bool:
        """Whether posting the same job again can only fail again (HTTP 400 rather than 500)."""
        return self.code in CALLERS_FAULT


CALLERS_FAULT = frozenset(
    {
        "invalid_job",
        "job_too_large",
        "context_length_exceeded",
        "invalid_token_id",
        "invalid_grammar",
        "unsupported",
        "chat_template_error",
    }
)


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """How one choice ended. ``tail`` is text that was held back and is released by the end itself."""

    finish_reason: EndReason
    tail: str = ""


@dataclass(frozen=True, slots=True)
class EndEvent:
    """The one terminal event of a job; nothing follows it."""

    cursor: Cursor
    reason: EndReason
    choices: tuple[ChoiceEnd, ...]
    usage: Usage
    error: JobError | None = None


StreamEvent = TokenEvent | EndEvent


@dataclass(frozen=True, slots=True)
class ChoiceResult:
    """One finished choice: its whole text and its tokens."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: EndReason
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class JobResult:
    """The final answer, kept for the retention time after the token stream is gone."""

    job_id: str
    reason: EndReason
    choices: tuple[ChoiceResult, ...]
    usage: Usage
    error: JobError | None = None


@dataclass(frozen=True, slots=True)
class PastClaim:
    """A claim that did not end its job. Times as in JobStatus."""

    worker: str
    claimed_ms: int
    ended_ms: int
    outcome: str
    """released: handed back; lost: its worker died or its lease ended."""
    committed_tokens: int
    """Of the whole job when the claim ended."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What a job's record says. Times are the server's clock in milliseconds since the epoch; 0: not yet."""

    job_id: str
    model: str
    tenant: str
    priority: Priority
    state: JobState
    committed_tokens: int
    attempts: int
    """Claims that ended in a crash or a lost lease; a drain does not count."""
    worker: str | None
    created_ms: int
    started_ms: int
    finished_ms: int
    deadline_ms: int
    cancel_reason: str | None
    reason: EndReason | None
    error: JobError | None
    on_disconnect: str = "cancel"
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    claimed_ms: int = 0
    """The last claim, by ``worker``."""
    history: tuple[PastClaim, ...] = ()
    """Earlier claims, the newest last; only some thirty are kept."""
    retry_of: str | None = None
    """The job whose body was posted again as this one."""
    first_token_ms: int = 0
    """When the first entry of its token stream came."""
    reserved: str = ""
    """Under which reservation of its tenant it was accepted; empty: none was needed."""
