"""``POST /v1/batches``: what is asked, checked."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError

from headway.gateway.errors import ApiError, invalid_request
from headway.gateway.file_requests import check_keep
from headway.gateway.request_shape import Shape
from headway.gateway.validation import refusal
from headway.queueing.batch import ENDPOINTS

_WINDOW = re.compile(r"([0-9]{1,3})h")
MOST_HOURS: Final = 168
"""A job's deadline may be a week away at most."""


class ExpiresAfter(Shape):
    """How long the batch's own files are kept."""

    anchor: Literal["created_at"]
    seconds: int


class BatchRequest(Shape):
    """A new batch."""

    input_file_id: str
    endpoint: Annotated[str, Field(json_schema_extra={"enum": [*ENDPOINTS]})]
    completion_window: Annotated[str, Field(json_schema_extra={"pattern": r"^[0-9]{1,3}h$"})]
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None
    output_expires_after: ExpiresAfter | None = None

    @property
    def window_seconds(self) -> int:
        """How long it may take."""
        match = _WINDOW.fullmatch(self.completion_window)
        assert match is not None, "checked when it was read"
        return int(match[1]) * 3600


def parse_batch(body: dict[str, object]) -> BatchRequest:
    """The request of a body; raises ApiError 400."""
    try:
        asked = BatchRequest.model_validate(body)
    except ValidationError as error:
        raise refusal(error) from None
    if asked.endpoint not in ENDPOINTS:
        raise _invalid("endpoint", f"is one of {', '.join(ENDPOINTS)}, not {asked.endpoint[:60]!r}")
    match = _WINDOW.fullmatch(asked.completion_window)
    if match is None or not 1 <= int(match[1]) <= MOST_HOURS:
        raise _invalid("completion_window", f"is written 24h: 1 to {MOST_HOURS} hours")
    if asked.output_expires_after is not None:
        check_keep(asked.output_expires_after.seconds, "output_expires_after.seconds")
    return asked


def _invalid(param: str, what: str) -> ApiError:
    return invalid_request(f"'{param}' {what}", param=param)
