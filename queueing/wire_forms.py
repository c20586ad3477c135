"""What lies in Redis, by shape: the entries, records and answers of docs/wire-protocol.md.

Nothing here is used to read or write them (``codec`` and the Lua functions do); ``asyncapi`` describes them
by it, and a test holds what real processes leave in a server against that description.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypeAlias

from pydantic import Field, Json
from typing_extensions import TypedDict

from headway.queueing.events import EndReason, JobError, JobState, Usage
from headway.queueing.messages import Priority

Digits: TypeAlias = Annotated[str, Field(pattern=r"^[0-9]+$")]
"""A count, written in decimal: a hash or a stream holds texts only."""
Milliseconds: TypeAlias = Annotated[Digits, Field(description="The server's clock, ms since 1970.")]
Service: TypeAlias = Annotated[str, Field(pattern=r"^-?[0-9]+(\.[0-9]+)?$", description="Weighted tokens.")]
HexBytes: TypeAlias = Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$")]
LogProbability: TypeAlias = Annotated[float | None, Field(description="Natural log; null: minus infinity.")]
TopRow: TypeAlias = tuple[int, str, HexBytes, LogProbability]
LogprobRow: TypeAlias = tuple[int, str, HexBytes, LogProbability, list[TopRow]]
"""Token id, text, bytes, log-probability, and the most likely ones in its place."""


class TokenEntry(TypedDict):
    """An entry with tokens in ``o:``; its id is ``<tokens>-<part>``."""

    t: Annotated[str, Field(description="Text; may be empty while some is held back.")]
    k: Annotated[str, Field(pattern=r"^([0-9]+(,[0-9]+)*)?$", description="Token ids.")]
    i: NotRequired[Annotated[Digits, Field(description="Number of the choice; left out for 0.")]]
    e: NotRequired[Annotated[EndReason, Field(description="Why this choice ended; left out before.")]]
    l: NotRequired[Json[list[LogprobRow]]]  # noqa: E741  # the field's name on the wire


class EndedChoice(TypedDict):
    """How a choice ended, and the text that was held back until then."""

    finish_reason: EndReason
    tail: str


class Ending(TypedDict):
    """How a job ended."""

    reason: EndReason
    choices: list[EndedChoice]
    usage: Usage
    error: JobError | None


class TerminalEntry(TypedDict):
    """The last entry in ``o:``."""

    t: Literal[""]
    k: Literal[""]
    i: Literal["-1"]
    e: Json[Ending]


class AnsweredChoice(TypedDict):
    """One choice, whole."""

    text: str
    token_ids: list[int]
    finish_reason: EndReason
    logprobs: list[LogprobRow]


class Answer(TypedDict):
    """The whole answer, in ``r:``."""

    reason: EndReason
    choices: list[AnsweredChoice]
    usage: Usage
    error: JobError | None


class JobRecord(TypedDict):
    """A job's record, in the hash ``j:``. What says nothing is left out, or empty once it said something."""

    state: JobState
    tenant: str
    band: Priority
    created: Milliseconds
    cost: NotRequired[Annotated[Service, Field(description="Estimated at acceptance.")]]
    choices: NotRequired[Digits]
    on_disconnect: NotRequired[Literal["detach"]]
    metadata: NotRequired[Json[dict[str, str]]]
    reserved: NotRequired[str]
    parent: NotRequired[Annotated[str, Field(description="The job whose body was posted again as this one.")]]
    deadline: NotRequired[Milliseconds]
    cancel: NotRequired[Annotated[str, Field(description="Why its worker is to end it.")]]
    worker: NotRequired[str]
    token: NotRequired[Annotated[str, Field(description="Of the claim that holds it; empty: none does.")]]
    epoch: NotRequired[Annotated[Digits, Field(description="How often it was claimed.")]]
    claimed: NotRequired[Milliseconds]
    started: NotRequired[Annotated[Milliseconds, Field(description="The first claim.")]]
    first: NotRequired[Annotated[Milliseconds, Field(description="The first token.")]]
    charged: NotRequired[Service]
    paid: NotRequired[Service]
    back: NotRequired[Literal["", "1"]]
    attempts: NotRequired[Annotated[Digits, Field(description="Claims that ended in a crash.")]]
    log: NotRequired[Annotated[str, Field(description="A line for each claim that did not end it.")]]
    reason: NotRequired[EndReason]
    error: NotRequired[Literal[""] | Json[JobError]]
    finished: NotRequired[Milliseconds]
    n: NotRequired[Annotated[Digits, Field(description="Tokens of the whole job, at its end.")]]
    done: NotRequired[Annotated[str, Field(description="The claim that ended it.")]]


class EndedJob(TypedDict):
    """An entry of ``recent:``."""

    job: str
    tenant: str
    band: Priority
    reason: EndReason
    tokens: Digits
    created: Milliseconds
    ended: Milliseconds


class DeadLetter(TypedDict):
    """An entry of ``dlq:``. ``reason``: a code, and what it means behind a colon."""

    job: str
    tenant: str
    reason: str
    attempts: Digits
    tokens: Digits


class Settlement(TypedDict):
    """An entry of ``settle:``: what a job with a reservation came to."""

    job: str
    tenant: str
    reserved: str
    prompt: Digits
    completion: Digits
    reason: EndReason


class Told(TypedDict):
    """An entry of ``ctl:``: this worker is to look at that job."""

    job: str
