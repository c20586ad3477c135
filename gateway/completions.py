"""``POST /v1/completions``."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from headway.gateway.answer import Answer
from headway.gateway.callers import caller_of
from headway.gateway.gateway import Gateway
from headway.gateway.intake import admit
from headway.gateway.json_body import read_json_object
from headway.gateway.openai_requests import CompletionRequest
from headway.gateway.openai_styles import CompletionStyle
from headway.gateway.schema import json_body_of
from headway.gateway.translate import completion_jobs
from headway.gateway.unsupported import COMPLETION, without_unsupported
from headway.gateway.validation import refusal


def completion_routes(gateway: Gateway) -> APIRouter:
    """The completions endpoint."""
    router = APIRouter(dependencies=[Depends(gateway.callers.identify)])

    @router.post("/v1/completions", openapi_extra=json_body_of(CompletionRequest))
    async def completions(request: Request) -> Response:
        """Continue one prompt or several, whole or as a stream."""
        body = await read_json_object(request, gateway.settings)
        asked = parse_completion(body)
        jobs = completion_jobs(asked, request.headers, gateway.settings.max_prompts, caller_of(request))
        echoed = tuple(str(prompt) for prompt in asked.prompt) if asked.echo else ()
        envelope = await admit(
            gateway,
            request,
            jobs,
            wants_logprobs=asked.logprobs is not None,
            echoed=echoed,
            constraint_param=asked.constraint()[1],
        )
        return Answer(
            gateway,
            jobs,
            CompletionStyle(),
            envelope,
            streams=asked.streams,
            includes_usage=asked.includes_usage,
        )

    return router


def parse_completion(body: dict[str, object]) -> CompletionRequest:
    """A completions request's shape, checked; raises ApiError 400."""
    try:
        return CompletionRequest.model_validate(without_unsupported(body, COMPLETION))
    except ValidationError as error:
        raise refusal(error) from None
