"""What all request bodies have in common."""

from __future__ import annotations

from typing import Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict

from headway.queueing.nesting import MOST_LEVELS, check_nesting


class Shape(BaseModel):
    """Strict types, as OpenAI's: ``"5"`` is no number, ``true`` no integer. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def bounded(value: Any) -> Any:
    """The value; raises ValueError for one that is nested too deep."""
    return check_nesting(value, MOST_LEVELS - 20)


BOUNDED: Final = AfterValidator(bounded)
"""For schemas: with room for what is put around them (a list of calls, an answer or a call)."""


def as_list(value: object) -> object:
    """A single text as a list of it."""
    return [value] if isinstance(value, str) else value
