"""JSON answers, encoded by orjson."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from starlette.responses import Response

from headway.gateway.errors import ApiError


def json_response(
    content: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON answer that no cache keeps."""
    return Response(
        orjson.dumps(content),
        status_code=status,
        headers={"cache-control": "no-store", **(headers or {})},
        media_type="application/json",
    )


def error_response(error: ApiError) -> Response:
    """An error in OpenAI's shape."""
    return json_response(error.body(), status=error.status, headers=error.headers)
