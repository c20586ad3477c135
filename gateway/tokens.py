"""``POST /tokenize`` and ``POST /detokenize``: jobs like all others, since a worker has the tokenizer."""

from __future__ import annotations

from typing import Any, Final

import orjson
from fastapi import APIRouter, Depends
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway.gateway.answer import Answer
from headway.gateway.callers import caller_of
from headway.gateway.gateway import Gateway
from headway.gateway.intake import admit
from headway.gateway.job_run import JobRun
from headway.gateway.json_body import read_json_object
from headway.gateway.json_response import json_response
from headway.gateway.openai_styles import CompletionStyle, Envelope
from headway.gateway.producer import producer_terms
from headway.gateway.schema import json_body_of
from headway.gateway.token_requests import DetokenizeRequest, TokenizeRequest
from headway.gateway.tool_requests import shown_tools
from headway.gateway.validation import refusal
from headway.queueing.errors import QueueingError
from headway.queueing.messages import Job, Priority

_RENAMED: Final = {"prompt_token_ids": "tokens"}


def token_routes(gateway: Gateway) -> APIRouter:
    """The tokenizer's endpoints."""
    router = APIRouter(dependencies=[Depends(gateway.callers.identify)])

    @router.post("/tokenize", openapi_extra=json_body_of(TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        """The token ids of a text or a conversation."""
        body = await read_json_object(request, gateway.settings)
        return await _answered(gateway, request, tokenize_job(body, request.headers, caller_of(request)))

    @router.post("/detokenize", openapi_extra=json_body_of(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        """The text of token ids."""
        body = await read_json_object(request, gateway.settings)
        return await _answered(gateway, request, detokenize_job(body, request.headers, caller_of(request)))

    return router


async def _answered(gateway: Gateway, request: Request, job: Job) -> Response:
    """The answer to a job that may be posted; raises as ``check_admission``."""
    envelope = await admit(gateway, request, (job,), wants_logprobs=False, names=_RENAMED)
    return TokenAnswer(gateway, job, envelope)


def tokenize_job(body: dict[str, object], headers: Headers, caller: str | None = None) -> Job:
    """The job of a tokenize request; raises ApiError 400."""
    try:
        asked = TokenizeRequest.model_validate(body)
    except ValidationError as error:
        raise refusal(error) from None
    task = {
        "kind": "tokenize",
        "add_special_tokens": asked.add_special_tokens is not False,
        "with_texts": asked.return_token_strs,
    }
    if asked.prompt is not None:
        return _job(asked.model, {"prompt": asked.prompt, "task": task}, headers, caller)
    told: dict[str, Any] = {
        "messages": [message.model_dump(exclude_none=True) for message in asked.messages or ()],
        "tools": shown_tools(asked.tools or ()),
        "chat_template_kwargs": (asked.chat_template_kwargs or {})
        | {"add_generation_prompt": asked.add_generation_prompt},
        "task": task,
    }
    return _job(asked.model, told, headers, caller)


def detokenize_job(body: dict[str, object], headers: Headers, caller: str | None = None) -> Job:
    """The job of a detokenize request; raises ApiError 400."""
    try:
        asked = DetokenizeRequest.model_validate(body)
    except ValidationError as error:
        raise refusal(error) from None
    task = {"kind": "detokenize"}
    return _job(asked.model, {"prompt_token_ids": asked.tokens, "task": task}, headers, caller)


def _job(model: str, told: dict[str, Any], headers: Headers, caller: str | None) -> Job:
    terms = {"priority": Priority.INTERACTIVE} | producer_terms(headers, {}, caller)
    terms.pop("idempotency_key", None)  # a repeat costs nothing, and nothing is kept that it could name
    # One token is what its place in the queue and its tenant's limits are reckoned with.
    fields = {"model": model, "sampling": {"max_tokens": 1}} | told | terms
    try:
        return Job.model_validate(fields)
    except ValidationError as error:
        raise refusal(error, _RENAMED) from None


class TokenAnswer(Answer):
    """Waits for the job as for any answer; keeps nothing of it afterwards."""

    def __init__(self, gateway: Gateway, job: Job, envelope: Envelope) -> None:
        super().__init__(gateway, (job,), CompletionStyle(), envelope, streams=False, includes_usage=False)

    async def _whole(self, run: JobRun, scope: Scope, receive: Receive, send: Send) -> None:
        (result,) = await self._results(run)
        answer: dict[str, Any] = orjson.loads(result.choices[0].text)
        self._gateway.errands.start(self._forget(run.job_ids[0]))
        await json_response(_shown(answer))(scope, receive, send)

    async def _forget(self, job_id: str) -> None:
        try:
            await self._gateway.queue.forget(job_id)
        except QueueingError:
            return  # its retention ends it as well, in time


def _shown(answer: dict[str, Any]) -> dict[str, object]:
    """vLLM's words for what the worker answered."""
    if "text" in answer:
        return {"prompt": answer["text"]}
    return {
        "count": len(answer["token_ids"]),
        "max_model_len": answer["max_model_len"],
        "tokens": answer["token_ids"],
        "token_strs": answer["texts"],
    }
