"""What clients post to ``/v1/responses``: shapes and types; ranges are the job contract's."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from headway.gateway.errors import invalid_request
from headway.gateway.json_values import is_array, is_object
from headway.gateway.openai_requests import Objective
from headway.gateway.request_shape import Shape, as_list
from headway.gateway.unsupported import NoEffect, without_unsupported
from headway.gateway.validation import refusal

_NO_EFFECT: Final[NoEffect] = {
    "context_management": ([],),
    "conversation": (),
    "max_tool_calls": (),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prompt": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory", "in-memory", "24h"),
    "reasoning": ({}, {"effort": None}, {"effort": "none"}),
    "service_tier": ("auto", "default"),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncation": ("disabled",),
}
"""OpenAI's fields that are not served: fine at the value that asks for nothing."""

LOGPROBS: Final = "message.output_text.logprobs"
_INCLUDABLE: Final = frozenset({LOGPROBS, "reasoning.encrypted_content"})
"""The second one asks for thoughts under a seal, which are in plain here; agents send it every time."""


Input = str | list[dict[str, Any]]


def _as_input(value: object) -> object:
    """A text, or a list of objects, whose own shapes are checked where they become turns."""
    if isinstance(value, str) or (is_array(value) and all(is_object(item) for item in value)):
        return value
    raise PydanticCustomError("input_type", "give a text, or a list of items, each an object")


class TextFormat(Shape):
    """The form of the answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_\-]{1,64}$")] | None = None
    description: str | None = None
    # Not "schema": pydantic's own models have a method of that name.
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextSettings(Shape):
    """``text``."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponseStreamOptions(Shape):
    """What else a stream carries."""

    include_obfuscation: Literal[False] | None = None


class ResponseRequest(Shape):
    """``POST /v1/responses``."""

    model: str
    input: (
        Annotated[
            Input,
            PlainValidator(_as_input),
            WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}),
        ]
        | None
    ) = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    text: TextSettings | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    background: bool | None = None
    store: bool | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    # Hints to OpenAI's own abuse checks and cache placement: given back, they ask nothing of us.
    user: Annotated[str, Field(max_length=512)] | None = None
    safety_identifier: Annotated[str, Field(max_length=512)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=512)] | None = None
    # What other open-source servers take, and chat here.
    stop: Annotated[list[str], BeforeValidator(as_list, json_schema_input_type=str | list[str])] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    # Headway's own.
    tenant: str | None = None
    priority: Literal["interactive", "standard", "batch"] | None = None
    deadline_seconds: float | None = None
    demotable: bool | None = None
    objective: Objective | None = None
    on_disconnect: Literal["cancel", "detach"] | None = None

    @property
    def is_stored(self) -> bool:
        """Whether the response can be asked for later."""
        return self.store is not False

    @property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities are shown."""
        return LOGPROBS in (self.include or ())


def parse_response_request(body: dict[str, object]) -> ResponseRequest:
    """A request's shape, checked; raises ApiError 400."""
    try:
        asked = ResponseRequest.model_validate(without_unsupported(body, _NO_EFFECT))
    except ValidationError as error:
        raise refusal(error) from None
    if asked.background and not asked.is_stored:
        raise invalid_request(
            "'background' needs 'store': nobody could fetch the answer otherwise", param="store"
        )
    if asked.stream_options is not None and not asked.stream:
        raise invalid_request("'stream_options' needs 'stream': true", param="stream_options")
    if asked.top_logprobs is not None and not asked.wants_logprobs:
        raise invalid_request(f"'top_logprobs' needs 'include': [\"{LOGPROBS}\"]", param="top_logprobs")
    for index, name in enumerate(asked.include or ()):
        if name not in _INCLUDABLE:
            raise invalid_request(
                f"'{name[:100]}' cannot be included here, only {LOGPROBS}",
                param=f"include[{index}]",
                code="unsupported",
            )
    return asked
