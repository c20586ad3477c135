"""From pydantic's findings to one error that names the field and says what it must be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from headway.gateway.errors import ApiError, invalid_request

MAX_NAME_CHARS: Final = 100
"""Field names come from the client: an unknown one is quoted up to here."""


def refusal(
    error: ValidationError, renamed: Mapping[str, str] | None = None, *, within: str = ""
) -> ApiError:
    """The first finding as a 400; ``renamed`` maps our field names to those that the client used.

    ``within``: the field of the request that was checked, if it was not all of it.
    """
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = _param(first["loc"], renamed or {}, within)
    message = re.sub(r"^Value error, ", "", first["msg"])
    match first["type"]:
        case "extra_forbidden":
            return invalid_request(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
        case "missing":
            return invalid_request(
                f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
            )
        case "unsupported":
            return invalid_request(message, param=param, code="unsupported")
        case kind:
            code = "invalid_type" if kind.endswith("_type") else "invalid_value"
            where = f"Invalid value for '{param}': " if param else ""
            return invalid_request(f"{where}{message}", param=param, code=code)


def _param(location: tuple[int | str, ...], renamed: Mapping[str, str], path: str) -> str | None:
    """``("messages", 0, "content")`` as ``messages[0].content``, behind what ``path`` is already."""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != "[key]":
            path += f".{renamed.get(part, part)[:MAX_NAME_CHARS]}"
    return path.lstrip(".") or None
