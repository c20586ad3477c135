"""What a response's input items carry beside what becomes a turn: held to its types, and then left alone.

Fields that we do not know are ignored: items come back from answers, whose maker may be newer than we are.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from headway.gateway.validation import refusal


class _Known(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class Item(_Known):
    """Of any item."""

    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class ThoughtPart(_Known):
    """Of a reasoning item's ``content``."""

    type: Literal["reasoning_text"]
    text: str


class SummaryPart(_Known):
    """Of a reasoning item's ``summary``."""

    type: Literal["summary_text"]
    text: str


class ReasoningItem(Item):
    """Thoughts of an earlier answer."""

    summary: list[SummaryPart] | None = None
    content: list[ThoughtPart] | None = None
    encrypted_content: str | None = None


class TextPart(_Known):
    """Of a message's ``content``, beside its text."""

    annotations: list[dict[str, Any]] | None = None
    logprobs: list[dict[str, Any]] | None = None


ITEM_SHAPES: Final[dict[str, type[Item]]] = {"reasoning": ReasoningItem}
"""Where a type of item has more than all have."""


def check_shape(shape: type[BaseModel], given: object, where: str) -> None:
    """Raise ApiError 400 that names the field at fault, which is part of ``where``."""
    try:
        shape.model_validate(given)
    except ValidationError as error:
        raise refusal(error, within=where) from None
