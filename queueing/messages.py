"""The job contract: what a producer posts, validated where the outside world enters.

The same model checks jobs from HTTP, from the client library and from raw Redis commands, so there is
one set of rules. ``job_schema()`` exports it as JSON Schema for producers in other languages.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError, model_validator
from pydantic_core import PydanticSerializationError

from headway.queueing.errors import InvalidJobError
from headway.queueing.nesting import BOUNDED

MAX_JOB_BYTES: Final = 1 << 20
"""Largest accepted job body. A 128k-token prompt is about 600 kB of text; larger inputs belong in a file."""

JOB_KEY_PATTERN: Final = r"^[A-Za-z0-9_\-]{1,64}$"
TENANT_PATTERN: Final = r"^[A-Za-z0-9_.@\-]{1,64}$"
MODEL_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.\-]*(/[A-Za-z0-9_.\-]+)?$"
TRACEPARENT_PATTERN: Final = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"


class Priority(StrEnum):
    """Class bands, served in this order (an aged job of a lower band goes first)."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"


def down_to(least: Priority) -> tuple[Priority, ...]:
    """A class and all better ones, best first."""
    classes = tuple(Priority)
    return classes[: classes.index(least) + 1]


class _Contract(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]


class FunctionCall(_Contract):
    """What the model called: ``arguments`` is the text that it wrote, JSON if it kept to the schema."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    arguments: str


class ToolCall(_Contract):
    """One call of a tool that an assistant's turn made."""

    id: Annotated[str, Field(min_length=1, max_length=64)]
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(_Contract):
    """One turn of a conversation, as the model's chat template sees it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    """None only in a turn that does nothing but call tools."""
    name: Annotated[str, Field(max_length=64)] | None = None
    tool_calls: Annotated[tuple[ToolCall, ...], Field(max_length=128)] = ()
    """Of an assistant's turn."""
    tool_call_id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Of a tool's turn: the call that it answers."""
    reasoning_content: str | None = None
    """Of an assistant's turn: what it thought, for templates that show earlier thoughts."""

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.content is None and not self.tool_calls:
            raise ValueError("content: give a text (it may be left out only beside tool_calls)")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls: only a turn of the assistant calls tools")
        if self.tool_call_id is not None and self.role != "tool":
            raise ValueError("tool_call_id: only a turn of a tool answers a call")
        return self


class Constraint(_Contract):
    """The form that an answer must have: exactly one of the four. A worker lets no other token through."""

    json_schema: Annotated[dict[str, Any] | bool | None, BOUNDED] = None
    """JSON Schema (draft 2020-12); ``{"type": "object"}`` for any object, ``true`` for any JSON."""
    regex: Annotated[str, Field(min_length=1, max_length=65536)] | None = None
    """The whole answer matches it (Rust's syntax: no look-around, no back-references)."""
    choice: (
        Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1, max_length=1024)]
        | None
    ) = None
    """The answer is one of these texts."""
    grammar: Annotated[str, Field(min_length=1, max_length=262144)] | None = None
    """A context-free grammar: Lark's notation, or EBNF with ``root ::= …``."""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        given = [
            name for name in ("json_schema", "regex", "choice", "grammar") if getattr(self, name) is not None
        ]
        if len(given) != 1:
            found = "none" if not given else " and ".join(given)
            raise ValueError(f"give exactly one of json_schema, regex, choice, grammar (found {found})")
        return self


class TokenTask(_Contract):
    """A job that generates nothing: its answer is a JSON text, and costs no tokens.

    ``tokenize``: ``{"token_ids": […], "texts": […] or null, "max_model_len": …}`` of the job's input.
    ``detokenize``: ``{"text": …}`` of its ``prompt_token_ids``.
    """

    kind: Literal["tokenize", "detokenize"]
    add_special_tokens: bool = True
    """What the model puts around a prompt; a chat template writes its own."""
    with_texts: bool = False
    """Each token's text as well."""


class SamplingParams(_Contract):
    """How the next token is chosen. Defaults sample from the model's own distribution."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    """Keep the k most likely tokens; 0 keeps all."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] = 1.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    """Counter-based by position, so a resumed answer continues the same draw. None: chosen at enqueue."""
    stop: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=256)], ...], Field(max_length=16)
    ] = ()
    stop_token_ids: Annotated[tuple[TokenId, ...], Field(max_length=64)] = ()
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """None: as many as the model's context leaves."""
    min_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    ignore_eos: bool = False
    logit_bias: Annotated[dict[TokenId, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] = (
        Field(default_factory=dict[int, float])
    )
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """None: none. k: the chosen token's log-probability and those of the k most likely."""
    n: Annotated[int, Field(ge=1, le=16)] = 1

    @model_validator(mode="after")
    def _min_fits_max(self) -> Self:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError("min_tokens must not exceed max_tokens")
        return self


class Objective(_Contract):
    """How long a reader should wait at most: for the first token, and for each one after it."""

    ttft_seconds: Annotated[float, Field(gt=0, le=3600)]
    tpot_seconds: Annotated[float, Field(gt=0, le=3600)]


class Job(_Contract):
    """What a producer posts: exactly one of ``messages``, ``prompt`` or ``prompt_token_ids``."""

    model: Annotated[str, Field(max_length=128, pattern=MODEL_PATTERN)]
    messages: Annotated[tuple[Message, ...], Field(min_length=1, max_length=4096)] | None = None
    prompt: Annotated[str, Field(min_length=1)] | None = None
    prompt_token_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)] | None = None
    tools: Annotated[tuple[Annotated[dict[str, Any], BOUNDED], ...], Field(max_length=128)] = ()
    """What ``messages`` may call, in OpenAI's form; the chat template shows them to the model."""
    chat_template_kwargs: Annotated[dict[str, bool | int | float | str | None], Field(max_length=16)] = Field(
        default_factory=dict[str, "bool | int | float | str | None"]
    )
    """Further names for the chat template, such as ``enable_thinking``."""
    constraint: Constraint | None = None
    task: TokenTask | None = None
    """None: generate an answer."""
    sampling: SamplingParams = SamplingParams()
    tenant: Annotated[str, Field(pattern=TENANT_PATTERN)] = "default"
    priority: Priority = Priority.STANDARD
    deadline_seconds: Annotated[float, Field(gt=0, le=7 * 86400)] | None = None
    """Counted from acceptance. Past it the job never starts, or stops with what it has."""
    demotable: StrictBool = False
    """The deadline is a wish: once it cannot be met the job goes on without it, in the class ``batch``."""
    objective: Objective | None = None
    """None: that of the job's band, as the operator set it."""
    idempotency_key: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    on_disconnect: Literal["cancel", "detach"] = "cancel"
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
        Field(max_length=16),
    ] = Field(default_factory=dict[str, str])
    notes: Annotated[
        dict[
            Annotated[str, Field(max_length=64)],
            StrictBool | StrictInt | Annotated[str, Field(max_length=512)] | None,
        ],
        Field(max_length=32),
    ] = Field(default_factory=dict[str, "bool | int | str | None"])
    """What whoever posted it wants to find beside it again; workers do not read it."""
    traceparent: Annotated[str, Field(pattern=TRACEPARENT_PATTERN)] | None = None

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        given = [
            name for name in ("messages", "prompt", "prompt_token_ids") if getattr(self, name) is not None
        ]
        if len(given) != 1:
            found = "none" if not given else " and ".join(given)
            raise ValueError(f"give exactly one of messages, prompt, prompt_token_ids (found {found})")
        return self

    @model_validator(mode="after")
    def _template_needs_messages(self) -> Self:
        for name in ("tools", "chat_template_kwargs"):
            if getattr(self, name) and self.messages is None:
                raise ValueError(f"{name}: only a chat template shows them to the model; give messages")
        return self

    @model_validator(mode="after")
    def _tokens_to_read(self) -> Self:
        if self.task is not None and self.task.kind == "detokenize" and self.prompt_token_ids is None:
            raise ValueError("task: give prompt_token_ids to detokenize")
        return self

    @model_validator(mode="after")
    def _demotion_needs_a_deadline(self) -> Self:
        if self.demotable and self.deadline_seconds is None:
            raise ValueError("demotable says what becomes of a late job: give deadline_seconds too")
        return self


def job_schema() -> dict[str, Any]:
    """The job contract as JSON Schema (draft 2020-12)."""
    return Job.model_json_schema()


def encode_job(job: Job) -> bytes:
    """The body as stored under ``p:{lane}:<key>``; InvalidJobError over MAX_JOB_BYTES, or not UTF-8."""
    try:
        body = orjson.dumps(
            job.model_dump(mode="json", exclude_defaults=True), option=orjson.OPT_NON_STR_KEYS
        )
    except (orjson.JSONEncodeError, UnicodeEncodeError, PydanticSerializationError):
        # Python's own strings may hold them, from arguments or files that were not UTF-8.
        raise InvalidJobError("a text holds half a surrogate pair: only UTF-8 can be posted") from None
    check_job_size(len(body))
    return body


def decode_job(body: bytes) -> Job:
    """Parse and validate a stored body; raises InvalidJobError that names the first field at fault."""
    check_job_size(len(body))
    try:
        return Job.model_validate_json(body)
    except ValidationError as error:
        raise invalid_job(error) from None


def check_job_size(size_bytes: int) -> None:
    """Raise InvalidJobError when a body is larger than MAX_JOB_BYTES."""
    if size_bytes > MAX_JOB_BYTES:
        raise InvalidJobError(
            f"the job is {size_bytes} bytes, the limit {MAX_JOB_BYTES}: shorten the prompt or split the work",
            code="job_too_large",
        )


def invalid_job(error: ValidationError) -> InvalidJobError:
    """The first problem of a validation error, worded for whoever posted the job."""
    first = error.errors(include_url=False, include_context=False)[0]
    param = ".".join(str(part) for part in first["loc"]) or None
    message = re.sub(r"^Value error, ", "", first["msg"])
    return InvalidJobError(f"{param}: {message}" if param else message, param=param)
