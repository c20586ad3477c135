"""``POST /v1/chat/completions``."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from headway.gateway.answer import Answer
from headway.gateway.callers import caller_of
from headway.gateway.chat_terms import chat_terms
from headway.gateway.gateway import Gateway
from headway.gateway.intake import admit
from headway.gateway.json_body import read_json_object
from headway.gateway.openai_requests import ChatRequest
from headway.gateway.openai_styles import ChatStyle
from headway.gateway.schema import json_body_of
from headway.gateway.translate import chat_job
from headway.gateway.unsupported import chat_body
from headway.gateway.validation import refusal


def chat_routes(gateway: Gateway) -> APIRouter:
    """The chat endpoint."""
    router = APIRouter(dependencies=[Depends(gateway.callers.identify)])

    @router.post("/v1/chat/completions", openapi_extra=json_body_of(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation, whole or as a stream."""
        body = await read_json_object(request, gateway.settings)
        asked = parse_chat(body)
        await gateway.models.fleet()  # how the model writes bears on what binds its answer
        terms = chat_terms(asked, gateway.models.formats(asked.model))
        job = chat_job(asked, request.headers, caller_of(request), terms=terms)
        envelope = await admit(
            gateway,
            request,
            (job,),
            wants_logprobs=bool(asked.logprobs),
            form=terms.form,
            constraint_param=terms.constraint_param,
        )
        return Answer(
            gateway, (job,), ChatStyle(), envelope, streams=asked.streams, includes_usage=asked.includes_usage
        )

    return router


def parse_chat(body: dict[str, object]) -> ChatRequest:
    """A chat request's shape, checked; raises ApiError 400."""
    try:
        return ChatRequest.model_validate(chat_body(body))
    except ValidationError as error:
        raise refusal(error) from None
