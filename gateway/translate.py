"""From OpenAI's requests to jobs.

Defaults that differ from the job contract's: the band is ``interactive``, since somebody waits at the other
end; ``max_tokens`` of completions is 16, as OpenAI documents; and with an ``Idempotency-Key`` a disconnect
detaches, since the key says that the producer may come back for the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError
from starlette.datastructures import Headers

from headway.gateway.chat_terms import ChatTerms, chat_terms, template_kwargs
from headway.gateway.errors import ApiError, invalid_request
from headway.gateway.openai_requests import ChatRequest, CompletionRequest, GenerationRequest, Prompt
from headway.gateway.producer import producer_terms
from headway.gateway.sampling_fields import sampling_params
from headway.gateway.validation import refusal
from headway.queueing.messages import Job, Priority, SamplingParams

COMPLETION_MAX_TOKENS: Final = 16


def chat_job(
    request: ChatRequest, headers: Headers, caller: str | None = None, *, terms: ChatTerms | None = None
) -> Job:
    """The one job of a chat request; raises ApiError 400. ``terms``: as settled before, if they were."""
    terms = chat_terms(request) if terms is None else terms
    _check_stream_options(request)
    if request.top_logprobs is not None and not request.logprobs:
        raise invalid_request("'top_logprobs' needs 'logprobs': true", param="top_logprobs")
    if None not in (request.max_tokens, request.max_completion_tokens):
        raise invalid_request(
            "give 'max_completion_tokens' or its old name 'max_tokens', not both", param="max_tokens"
        )
    max_name = "max_tokens" if request.max_tokens is not None else "max_completion_tokens"
    sampling = _sampling(
        request,
        max_tokens=request.max_tokens if request.max_tokens is not None else request.max_completion_tokens,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        renamed={"max_tokens": max_name, "logprobs": "top_logprobs"},
    )
    told = {
        "messages": [message.model_dump(exclude_none=True) for message in request.messages],
        "tools": terms.shown(),
        "chat_template_kwargs": template_kwargs(request, leaves_room=terms.leaves_room),
        "constraint": terms.constraint,
    }
    return _job(request, headers, sampling, told, caller=caller)


def completion_jobs(
    request: CompletionRequest, headers: Headers, max_prompts: int, caller: str | None = None
) -> tuple[Job, ...]:
    """One job for each prompt, in order; raises ApiError 400."""
    _check_stream_options(request)
    _check_completion(request, max_prompts)
    max_tokens = request.max_tokens if request.max_tokens is not None else COMPLETION_MAX_TOKENS
    sampling = _sampling(request, max_tokens=max_tokens, logprobs=request.logprobs, renamed={})
    constraint, _ = request.constraint()
    return tuple(
        _job(
            request,
            headers,
            sampling,
            _prompt(prompt) | {"constraint": constraint},
            caller=caller,
            key_suffix=f":{index}" if index else "",
        )
        for index, prompt in enumerate(request.prompt)
    )


def _check_stream_options(request: GenerationRequest) -> None:
    if request.stream_options is not None and not request.streams:
        raise invalid_request("'stream_options' needs 'stream': true", param="stream_options")


def _check_completion(request: CompletionRequest, max_prompts: int) -> None:
    if len(request.prompt) > max_prompts:
        raise invalid_request(f"at most {max_prompts} prompts fit one request", param="prompt")
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise _unsupported(
            "best_of", "'best_of' other than 'n' is not supported: ask for 'n' and choose yourself"
        )
    if request.echo and request.logprobs is not None:
        raise _unsupported("echo", "'echo' with 'logprobs' is not supported: prompt tokens are not scored")
    if request.echo and not all(isinstance(prompt, str) for prompt in request.prompt):
        raise _unsupported("echo", "'echo' needs the prompt as text: token ids cannot be given back exactly")


def _unsupported(param: str, message: str) -> ApiError:
    return invalid_request(message, param=param, code="unsupported")


def _sampling(
    request: GenerationRequest, *, max_tokens: int | None, logprobs: int | None, renamed: Mapping[str, str]
) -> SamplingParams:
    return sampling_params(request, {"max_tokens": max_tokens, "logprobs": logprobs}, renamed)


def _prompt(prompt: Prompt) -> dict[str, Any]:
    return {"prompt": prompt} if isinstance(prompt, str) else {"prompt_token_ids": prompt}


def _job(
    request: GenerationRequest,
    headers: Headers,
    sampling: SamplingParams,
    prompt: dict[str, Any],
    *,
    caller: str | None,
    key_suffix: str = "",
) -> Job:
    fields = request.model_dump(exclude_none=True)
    terms = {"priority": Priority.INTERACTIVE} | producer_terms(headers, fields, caller)
    terms |= {name: fields[name] for name in ("demotable", "objective") if name in fields}
    if "idempotency_key" in terms:
        terms["idempotency_key"] += key_suffix
        terms.setdefault("on_disconnect", "detach")
    try:
        return Job.model_validate(
            {"model": request.model, "sampling": sampling, "metadata": request.metadata or {}}
            | prompt
            | terms
        )
    except ValidationError as error:
        raise refusal(error, {"prompt_token_ids": "prompt", "idempotency_key": "Idempotency-Key"}) from None
