"""What ``/tokenize`` and ``/detokenize`` take: vLLM's fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from headway.gateway.openai_requests import ChatMessage
from headway.gateway.request_shape import Shape
from headway.gateway.tool_requests import Tool

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]


class TokenizeRequest(Shape):
    """A text, or a conversation as the model's chat template writes it."""

    model: str
    prompt: Annotated[str, Field(min_length=1)] | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: Literal[False] = False
    add_special_tokens: bool | None = None
    """None: for a text, but not for a conversation, whose template writes its own."""
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("one_input", "give either 'prompt' or 'messages'")
        if self.messages is not None and self.add_special_tokens:
            raise PydanticCustomError(
                "add_special_tokens", "a chat template writes its own special tokens: leave it out"
            )
        return self


class DetokenizeRequest(Shape):
    """Token ids of a model."""

    model: str
    tokens: Annotated[list[TokenId], Field(min_length=1)]
