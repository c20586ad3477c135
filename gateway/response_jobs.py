"""From a responses request to its job, built on an earlier response's if it names one.

The conversation so far is that earlier job's messages and its answer: they are copied into the new job's
body, so each job stands for itself, and no chain of jobs has to be kept. What the response object shows
beyond what the job says already goes into the job's notes.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request

from headway.gateway.answer_form import AnswerForm, Gathered
from headway.gateway.callers import caller_of
from headway.gateway.errors import ApiError, invalid_request
from headway.gateway.gateway import Gateway
from headway.gateway.producer import producer_terms
from headway.gateway.response_ids import job_id_of
from headway.gateway.response_input import Turn, turns_of
from headway.gateway.response_requests import ResponseRequest, TextFormat
from headway.gateway.sampling_fields import sampling_params
from headway.gateway.validation import refusal
from headway.queueing.answer_formats import REASONING_FORMATS, ReasoningFormat
from headway.queueing.errors import UnknownJobError
from headway.queueing.events import JobResult
from headway.queueing.messages import Constraint, Job, Message, Priority, SamplingParams

_NOTED: Final[tuple[str, ...]] = ("previous_response_id", "user", "safety_identifier", "prompt_cache_key")

STORE: Final = "store"
"""The note that marks a job as a response: false means that it is not to be found later."""


REASONING: Final = "reasoning"
"""The note of how the model marks its thoughts."""


def form_of_thinking(job: Job) -> AnswerForm:
    """How a response's text is read."""
    noted = job.notes.get(REASONING)
    known: list[ReasoningFormat] = [name for name in REASONING_FORMATS if name == noted]
    return AnswerForm(reasoning_format=known[0] if known else "none")


async def response_job(gateway: Gateway, request: Request, asked: ResponseRequest) -> Job:
    """The job of a request; raises ApiError 400, and what ``Queue.job`` raises of an earlier response."""
    turns = turns_of(asked.input)
    if asked.previous_response_id is not None:
        turns = await _turns_before(gateway, request, asked.previous_response_id) + turns
    if asked.instructions is not None:
        turns = [{"role": "system", "content": asked.instructions}, *turns]
    if not turns:
        raise invalid_request(
            "give 'input': a text or a list of items", param="input", code="missing_required_parameter"
        )
    await gateway.models.fleet()
    reasoning = gateway.models.formats(asked.model).reasoning
    return _job(asked, request.headers, turns, caller_of(request), reasoning)


async def _turns_before(gateway: Gateway, request: Request, response_id: str) -> list[Turn]:
    """An earlier response's conversation without its instructions, and its answer; raises ApiError 400."""
    try:
        job_id = job_id_of(response_id)
        await gateway.callers.check_own(request, job_id)
        job = await gateway.queue.job(job_id)
        result = await gateway.queue.result(job_id)
    except (ApiError, UnknownJobError):
        job, result = None, None
    if job is None or job.messages is None or job.notes.get(STORE) is not True:
        raise invalid_request(
            f"there is no stored response {response_id[:200]!r} to go on from: its retention (1 h after the "
            "end) may have passed; send the conversation as 'input' instead",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if result is None:
        raise invalid_request(
            f"response {response_id} has not ended yet: wait for it, or cancel it",
            param="previous_response_id",
            code="previous_response_in_progress",
        )
    return [message.model_dump() for message in input_of(job)] + _answer_of(job, result)


def input_of(job: Job) -> tuple[Message, ...]:
    """A job's messages without the instructions, which hold for one response only."""
    messages = job.messages or ()
    return messages[1:] if job.notes.get("instructions") else messages


def _answer_of(job: Job, result: JobResult) -> list[Turn]:
    """What was said: thoughts are not shown to a model again, as its own template would have it."""
    form = form_of_thinking(job)
    texts = [Gathered.from_text(form, choice.text).words for choice in result.choices[:1]]
    return [{"role": "assistant", "content": text} for text in texts if text]


def _job(
    asked: ResponseRequest, headers: Headers, turns: list[Turn], caller: str | None, reasoning: str
) -> Job:
    fields = asked.model_dump(exclude_none=True)
    band = Priority.STANDARD if asked.background else Priority.INTERACTIVE
    terms = {"priority": band} | producer_terms(headers, fields, caller)
    terms |= {name: fields[name] for name in ("demotable", "objective") if name in fields}
    if asked.background:
        terms["on_disconnect"] = "detach"
    elif "idempotency_key" in terms:
        terms.setdefault("on_disconnect", "detach")
    written: dict[str, Any] = {
        "model": asked.model,
        "messages": turns,
        "sampling": _sampling(asked),
        "metadata": asked.metadata or {},
        "notes": _notes(asked, fields) | ({} if reasoning == "none" else {REASONING: reasoning}),
        "constraint": _constraint(asked.text.format if asked.text else None),
    }
    try:
        return Job.model_validate(written | terms)
    except ValidationError as error:
        raise refusal(error, {"messages": "input", "idempotency_key": "Idempotency-Key"}) from None


def _sampling(asked: ResponseRequest) -> SamplingParams:
    return sampling_params(
        asked,
        {
            "max_tokens": asked.max_output_tokens,
            "logprobs": (asked.top_logprobs or 0) if asked.wants_logprobs else None,
        },
        {"max_tokens": "max_output_tokens", "logprobs": "top_logprobs"},
    )


def _notes(asked: ResponseRequest, fields: dict[str, Any]) -> dict[str, Any]:
    notes: dict[str, Any] = {name: fields[name] for name in _NOTED if name in fields}
    notes |= {STORE: asked.is_stored, "background": bool(asked.background)}
    if asked.instructions is not None:
        notes["instructions"] = True
    form = asked.text.format if asked.text else None
    if form is not None and form.type != "text":
        notes["format"] = form.type
        for name in ("name", "strict", "description"):
            value = getattr(form, name)
            if value is not None:
                notes[f"format_{name}"] = value[:512] if isinstance(value, str) else value
    return notes


def _constraint(form: TextFormat | None) -> Constraint | None:
    """What the text must be; raises ApiError 400."""
    match form:
        case TextFormat(type="json_object"):
            return Constraint(json_schema={"type": "object"})
        case TextFormat(type="json_schema"):
            for name, value in (("name", form.name), ("schema", form.json_schema)):
                if value is None:
                    raise invalid_request(
                        f"'text.format.{name}' is needed with the type json_schema",
                        param=f"text.format.{name}",
                        code="missing_required_parameter",
                    )
            return _held_to(form.json_schema)
        case _:
            return None


def _held_to(schema: dict[str, Any] | None) -> Constraint:
    try:
        return Constraint(json_schema=schema)
    except ValidationError as error:
        raise refusal(error, {"json_schema": "text.format.schema"}) from None
