"""Request bodies: bounded in size and time while they are read, and JSON objects or a clear refusal."""

from __future__ import annotations

import asyncio

import orjson
from starlette.requests import ClientDisconnect, Request

from headway.gateway.errors import ApiError, ClientGoneError, invalid_request
from headway.gateway.json_values import is_object
from headway.gateway.settings import GatewaySettings


async def read_json_object(request: Request, settings: GatewaySettings) -> dict[str, object]:
    """The body as a JSON object; raises ApiError 400, 408, 413 or 415, ClientGoneError."""
    _check_media_type(request)
    try:
        async with asyncio.timeout(settings.body_seconds):
            body = await _read(request, settings.max_body_bytes)
    except TimeoutError:
        raise _too_slow(settings.body_seconds) from None
    try:
        parsed: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid_request(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not is_object(parsed):
        raise invalid_request("the body must be a JSON object", code="invalid_json")
    return parsed


def _check_media_type(request: Request) -> None:
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise ApiError(
            415,
            f"send the body as application/json, not {media_type[:100]!r} "
            "(curl: -H 'Content-Type: application/json')",
            code="unsupported_media_type",
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "send the body uncompressed", code="unsupported_content_encoding")


async def _read(request: Request, limit_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:18]) > limit_bytes:
        raise _too_large(limit_bytes)
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > limit_bytes:
                raise _too_large(limit_bytes)
    except ClientDisconnect:
        raise ClientGoneError from None
    return bytes(body)


def _too_large(limit_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"the body is over the limit of {limit_bytes} bytes: shorten the prompt or split the work",
        code="body_too_large",
    )


def _too_slow(limit_seconds: float) -> ApiError:
    return ApiError(
        408,
        f"the body did not arrive within {limit_seconds:g} s",
        code="body_too_slow",
        headers={"connection": "close"},  # what else trickles in is not waited for
    )
