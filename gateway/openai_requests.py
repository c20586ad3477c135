"""What OpenAI's clients post, and Headway's own fields beside it.

Only shapes and types are checked here; ranges are the job contract's (``queueing/messages.py``), so that
there is one set of rules. Types are strict, as OpenAI's are: ``"5"`` is no number, ``true`` no integer.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, PlainValidator, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from headway.gateway.json_values import is_array, is_object
from headway.gateway.request_shape import Shape, as_list
from headway.gateway.structured import StructuredRequest
from headway.gateway.tool_requests import Tool, ToolChoiceField


def _as_text(value: object) -> object:
    """Text parts become one text, a line each; parts of any other kind are refused."""
    if not is_array(value):
        return value
    return "\n".join(_part_text(part) for part in value)


def _part_text(part: object) -> str:
    kind = part.get("type") if is_object(part) else None
    text = part.get("text") if is_object(part) else None
    if isinstance(kind, str) and kind != "text":
        raise PydanticCustomError(
            "unsupported",
            "content parts of type '{kind}' are not supported yet: send text",
            {"kind": kind[:40]},
        )
    if kind is None or not isinstance(text, str):
        raise PydanticCustomError("text_part", 'a content part must be {"type": "text", "text": …}')
    return text


Texts = str | list[str]
Content = str | list[dict[str, Any]] | None
"""Null, or left out, beside ``tool_calls``."""
Prompt = str | tuple[int, ...]


def _as_prompts(value: object) -> tuple[Prompt, ...]:
    """A text, a list of texts, token ids, or a list of lists of token ids."""
    if isinstance(value, str):
        return (value,)
    if is_array(value) and value:
        texts = [item for item in value if isinstance(item, str)]
        if len(texts) == len(value):
            return tuple(texts)
        if (token_ids := _token_ids(value)) is not None:
            return (token_ids,)
        lists = [_token_ids(item) for item in value]
        if all(lists):
            return tuple(item for item in lists if item)
    raise PydanticCustomError(
        "prompt_type",
        "give a text, a list of texts, token ids, or a list of lists of token ids; none of them empty",
    )


def _token_ids(value: object) -> tuple[int, ...] | None:
    if not is_array(value):
        return None
    found = tuple(item for item in value if type(item) is int and 0 <= item < 2**31)
    return found if len(found) == len(value) else None


class StreamOptions(Shape):
    """What else a stream carries."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Objective(Shape):
    """How long a reader should wait at most: for the first token, and for each one after it."""

    ttft_seconds: float
    tpot_seconds: float


class GenerationRequest(StructuredRequest):
    """What chat and completions have in common."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: Annotated[list[str], BeforeValidator(as_list, json_schema_input_type=Texts)] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    # What open-source servers added and their users expect.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    # Headway's own; X-Tenant, X-Priority and X-Deadline say the same for clients that only set headers.
    tenant: str | None = None
    priority: Literal["interactive", "standard", "batch"] | None = None
    deadline_seconds: float | None = None
    demotable: bool | None = None
    objective: Objective | None = None
    on_disconnect: Literal["cancel", "detach"] | None = None

    @property
    def streams(self) -> bool:
        """Whether the answer is to come as events."""
        return bool(self.stream)

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class CalledFunction(Shape):
    """What an assistant called, and with which arguments: a JSON text, as the model wrote it."""

    name: str
    arguments: str


class Call(Shape):
    """One call of an assistant's turn."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


def _words_may_be_missing(schema: dict[str, Any]) -> None:
    schema["required"].remove("content")


class ChatMessage(Shape):
    """One turn of a conversation."""

    model_config = ConfigDict(json_schema_extra=_words_may_be_missing)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_as_text, json_schema_input_type=Content)]
    name: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _calls_need_no_words(cls, value: object) -> object:
        if is_object(value) and value.get("tool_calls") and value.get("content") is None:
            return value | {"content": ""}
        return value

    @model_validator(mode="after")
    def _fits_its_role(self) -> ChatMessage:
        if self.role == "tool" and self.tool_call_id is None:
            raise PydanticCustomError(
                "tool_call_id",
                "a message of role 'tool' needs the 'tool_call_id' of the call that it answers",
            )
        if self.tool_calls and self.role != "assistant":
            raise PydanticCustomError("tool_calls", "only a message of role 'assistant' has 'tool_calls'")
        return self


class ChatRequest(GenerationRequest):
    """``POST /v1/chat/completions``."""

    messages: list[ChatMessage]
    tools: list[Tool] | None = None
    tool_choice: ToolChoiceField = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    # Hints to OpenAI's own abuse checks and cache placement: they ask nothing of us.
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class CompletionRequest(GenerationRequest):
    """``POST /v1/completions``."""

    prompt: Annotated[
        tuple[Prompt, ...],
        PlainValidator(_as_prompts),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"type": "string"}},
                    {"type": "array", "items": {"type": "integer"}},
                    {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
                ]
            }
        ),
    ]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
