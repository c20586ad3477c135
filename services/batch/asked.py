"""What a line asks for: its jobs, and how their results become the body of its answer.

The same code reads a line as reads a request at the gateway, so that a batch accepts what the endpoint does
and answers in its words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from starlette.datastructures import Headers

from headway.gateway.answer_form import AnswerForm
from headway.gateway.chat import parse_chat
from headway.gateway.chat_terms import chat_terms
from headway.gateway.completions import parse_completion
from headway.gateway.errors import invalid_request
from headway.gateway.job_fields import FieldNames, openai_fields
from headway.gateway.model_directory import Formats
from headway.gateway.openai_answers import whole_answer
from headway.gateway.openai_styles import ChatStyle, CompletionStyle, Envelope, Style
from headway.gateway.translate import chat_job, completion_jobs
from headway.queueing.events import JobResult
from headway.queueing.messages import Job, Priority
from headway.services.batch.line import Line

MAX_PROMPTS: Final = 64
GRACE_SECONDS: Final = 60.0
LONGEST_SECONDS: Final = 7 * 86_400.0
"""As the job contract has it."""
_NO_HEADERS: Final = Headers({})


@dataclass(frozen=True, slots=True)
class Terms:
    """On whose account a line's jobs run, and until when (seconds from now)."""

    batch_id: str
    tenant: str
    seconds_left: float
    now_unix: int
    fingerprint: str = "headway"


@dataclass(frozen=True, slots=True)
class Asked:
    """A line's jobs with their keys, and the answer that their results make."""

    jobs: tuple[Job, ...]
    keys: tuple[str, ...]
    answer: Callable[[Sequence[JobResult]], dict[str, object]]
    constraint_param: str | None = None
    """The field that asks for the jobs' constraint, if they have one."""

    @property
    def names(self) -> FieldNames:
        """What the line calls the jobs' fields."""
        return openai_fields(self.constraint_param)


def ask(line: Line, endpoint: str, terms: Terms, formats: Callable[[str], Formats]) -> Asked:
    """What a line asks for; raises ApiError 400. ``formats``: how a model writes what is not plain words."""
    if line.body.get("stream"):
        raise invalid_request("a batch has no streams: leave 'stream' out", param="stream")
    style: Style
    jobs: tuple[Job, ...]
    echoed: tuple[str, ...] = ()
    form = AnswerForm()
    constraint_param: str | None
    if endpoint == "/v1/chat/completions":
        chat = parse_chat(line.body)
        chosen = chat_terms(chat, formats(chat.model))
        jobs = (chat_job(chat, _NO_HEADERS, terms.tenant, terms=chosen),)
        form, constraint_param = chosen.form(formats(jobs[0].model)), chosen.constraint_param
        style, wants_logprobs = ChatStyle(), bool(chat.logprobs)
    else:
        completion = parse_completion(line.body)
        jobs = completion_jobs(completion, _NO_HEADERS, MAX_PROMPTS, terms.tenant)
        echoed = tuple(str(prompt) for prompt in completion.prompt) if completion.echo else ()
        constraint_param = completion.constraint()[1]
        style, wants_logprobs = CompletionStyle(), completion.logprobs is not None
    envelope = Envelope(
        model=jobs[0].model,
        created_unix=terms.now_unix,
        fingerprint=terms.fingerprint,
        wants_logprobs=wants_logprobs,
        choices_per_prompt=jobs[0].sampling.n,
        echoed=echoed,
        form=form,
    )
    keys = tuple(job_key(terms.batch_id, line.custom_id, index) for index in range(len(jobs)))
    answer_id = f"{style.id_prefix}{keys[0]}"
    return Asked(
        tuple(_batched(job, line, terms) for job in jobs),
        keys,
        lambda results: whole_answer(style, envelope, answer_id, results),
        constraint_param,
    )


def job_key(batch_id: str, custom_id: str, prompt: int) -> str:
    """The key of a line's job: the same whoever posts it, and whenever."""
    digest = sha256(custom_id.encode(errors="surrogatepass")).hexdigest()
    return f"{batch_id}-{digest[:20]}-{prompt}"


def _batched(job: Job, line: Line, terms: Terms) -> Job:
    # A little past the batch's own end, which comes first and says so in the errors.
    left = min(max(1.0, terms.seconds_left) + GRACE_SECONDS, LONGEST_SECONDS)
    return job.model_copy(
        update={
            "priority": Priority.BATCH,
            "deadline_seconds": min(left, job.deadline_seconds or left),
            "idempotency_key": None,
            "on_disconnect": "detach",
            "metadata": {"batch_id": terms.batch_id, "custom_id": line.custom_id[:512]},
        }
    )
