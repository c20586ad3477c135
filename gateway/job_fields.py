"""A job's fields by the names that its client's request has for them.

A worker names what is at fault in the job contract's words; whoever posted a chat knows no ``sampling`` and
no ``constraint``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from headway.gateway.errors import ApiError

FieldNames: TypeAlias = Mapping[str, str]
"""Of a job's fields, those that the request has other names for."""

RESPONSE_FIELDS: Final[FieldNames] = {
    "messages": "input",
    "constraint": "text.format.schema",
    "sampling.max_tokens": "max_output_tokens",
    "sampling.logprobs": "top_logprobs",
}
_SAMPLING: Final = "sampling."


def openai_fields(constraint_param: str | None) -> FieldNames:
    """Of chat and completions; ``constraint_param``: the field that asks for the constraint."""
    named = {"prompt_token_ids": "prompt"}
    return named if constraint_param is None else named | {"constraint": constraint_param}


def as_asked(error: ApiError, names: FieldNames) -> ApiError:
    """The error, with the request's name of what is at fault."""
    if error.param is not None:
        error.param = _name(error.param, names)
    return error


def _name(field: str, names: FieldNames) -> str:
    # The request asks for a constraint in one place, whichever kind the contract makes of it.
    known = names.get(field) or (names.get("constraint") if field.startswith("constraint.") else None)
    return known or field.removeprefix(_SAMPLING)
