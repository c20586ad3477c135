"""Where the queue's words become the engine's, and back: the one file that knows both.

    Claim ─► Job ─► one RequestSpec per choice        (``prepare``)
    Output ─► text, tokens, logprobs of one choice    (``take_output``)

What is refused, and how it ends:

- A body that breaks the job contract (only raw producers can post one) ends with ``invalid_job`` or
  ``job_too_large`` *and* is recorded in the dead-letter stream: its producer may not read streams at all.
- A job that this model cannot serve (too long, unknown token id, unsupported, template refuses) ends with its
  code as an ordinary error: its producer asked for something, and is answered.
- A job that cannot end before its deadline by prediction ends with ``deadline`` and the numbers.
- A request that fails inside the engine ends with ``engine_error``, and is recorded: an operator must see it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from headway.engine.errors import ContextLengthError, GrammarError, RequestError, UnsupportedError
from headway.engine.interfaces import Tokenizer
from headway.engine.values import FinishReason, Objective, Output, RequestSpec, Sampling, TextLogprobs
from headway.queueing.claims import Claim
from headway.queueing.errors import InvalidJobError
from headway.queueing.events import EndReason, JobError, TokenLogprob, TopLogprob
from headway.queueing.messages import Job, Priority, SamplingParams, decode_job
from headway.services.answer import Answer
from headway.services.constraint import field_of, source_of
from headway.services.prompt import prompt_of
from headway.services.token_task import task_answer

BAND: Final = {Priority.INTERACTIVE: 0, Priority.STANDARD: 1, Priority.BATCH: 2}

_GOLDEN_GAMMA: Final = 0x9E3779B97F4A7C15
"""2**64 / golden ratio, odd: spreads consecutive choices over the seed space (SplitMix64)."""
_SEED_MASK: Final = (1 << 63) - 1
"""Seeds stay non-negative int64, which every runner takes."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job ready to run: its answer so far, and a request for each choice that has not ended."""

    job: Job
    answer: Answer
    specs: tuple[RequestSpec, ...]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A job that ends without running; ``dead_letter`` is the reason to record it there."""

    error: JobError
    choices: int = 1
    dead_letter: str | None = None
    job: Job | None = None


@dataclass(frozen=True, slots=True)
class ModelSide:
    """What translation needs to know of the model; ``check`` raises RequestError for what it cannot run."""

    name: str
    tokenizer: Tokenizer
    max_model_len: int
    check: Callable[[RequestSpec], None]


def prepare(claim: Claim, model: ModelSide, received_seconds: float) -> Prepared | Refusal:
    """Validate, tokenize and split a claim. ``received_seconds``: the engine's clock at the claim.

    Takes milliseconds per megabyte of prompt, so it runs beside the loops, in a thread.
    """
    try:
        job = _read_job(claim, model.name)
    except InvalidJobError as error:
        return Refusal(JobError(error.code, str(error), error.param), dead_letter=error.code)
    try:
        if job.task is not None:
            return _answered(job, task_answer(job, job.task, model.tokenizer, model.max_model_len))
        asked = prompt_of(job, model.tokenizer)
        prompt = asked.token_ids
        limit = _max_tokens(job, len(prompt), model.max_model_len)
        grammar = None if job.constraint is None else source_of(job.constraint)
        answer = Answer(job.sampling.n, claim.committed, asked.opening)
        specs = tuple(
            _spec(claim, job, choice, prompt, limit, answer, received_seconds, grammar)
            for choice in range(job.sampling.n)
            if answer.finish_reason(choice) is None
        )
        for spec in specs:
            model.check(spec)
    except RequestError as error:
        return Refusal(_job_error(error, job), choices=job.sampling.n, job=job)
    return Prepared(job, answer, specs, len(prompt))


def _answered(job: Job, text: str) -> Prepared:
    """A job with nothing to run: its end brings the text."""
    answer = Answer(1)
    answer.add(0, text, ())
    return Prepared(job, answer, (), 0)


def request_id(job_id: str, choice: int) -> str:
    """The engine's name of one choice of a job."""
    return f"{job_id}#{choice}"


@lru_cache(maxsize=4096)  # asked for every token, of the same few requests
def job_of(request: str) -> tuple[str, int]:
    """The job and the choice that a request id names."""
    job_id, _, choice = request.rpartition("#")
    return job_id, int(choice)


def was_taken_out(output: Output) -> bool:
    """Whether a request ended because it was cancelled, not by itself."""
    return output.finish_reason is FinishReason.CANCELLED


def as_full(output: Output) -> Output:
    """The output of a request that was taken out because its stream is full: it is as long as it may be."""
    return output._replace(finish_reason=FinishReason.LENGTH) if was_taken_out(output) else output


def take_output(answer: Answer, output: Output, tokenizer: Tokenizer) -> JobError | None:
    """Add a step's output to the answer of its job; returns the error when it ended with one."""
    _, choice = job_of(output.key.request_id)
    reason = EndReason(output.finish_reason.value) if output.finish_reason is not None else None
    logprobs = (
        tuple([_token_logprob(entry, tokenizer) for entry in output.logprobs]) if output.logprobs else ()
    )
    answer.add(choice, output.text, output.token_ids, logprobs, reason)
    if reason is None:
        return None
    if output.finish_reason is FinishReason.DEADLINE and output.error_message is not None:
        return JobError("deadline_unreachable", output.error_message, "deadline_seconds")
    if output.finish_reason is not FinishReason.ERROR:
        return None
    return JobError("engine_error", output.error_message or "the engine could not go on with this request")


def _read_job(claim: Claim, model_name: str) -> Job:
    job = decode_job(claim.body)
    if job.model != model_name:
        raise InvalidJobError(
            f"model: the job asks for {job.model!r}, but was posted to the lane of {model_name!r}; "
            "post it to the lane of its model",
            param="model",
        )
    if any(entry.choice >= job.sampling.n for entry in claim.committed):
        raise InvalidJobError(
            "sampling.n: the job was changed after its answer had begun", param="sampling.n"
        )
    return job


def _max_tokens(job: Job, prompt_tokens: int, max_model_len: int) -> int:
    """The answer's limit in tokens; raises ContextLengthError when prompt and answer can never fit."""
    room = max_model_len - prompt_tokens
    asked = job.sampling.max_tokens
    if room < 1:
        raise ContextLengthError(
            f"This model's maximum context length is {max_model_len} tokens, and the prompt alone has "
            f"{prompt_tokens}. Shorten the prompt to at most {max_model_len - 1} tokens."
        )
    if asked is not None and asked > room:
        raise ContextLengthError(
            f"This model's maximum context length is {max_model_len} tokens. You requested "
            f"{prompt_tokens + asked} ({prompt_tokens} in the prompt, {asked} for the answer). Shorten the "
            f"prompt, or ask for at most {room} tokens."
        )
    return room if asked is None else asked


def _spec(  # noqa: PLR0917 - one caller, which has just made all of them
    claim: Claim,
    job: Job,
    choice: int,
    prompt: tuple[int, ...],
    max_tokens: int,
    answer: Answer,
    received_seconds: float,
    grammar: str | None,
) -> RequestSpec:
    # The server's clock says how old the job was at the claim; ours only measures from there on.
    arrival = received_seconds - (claim.now_ms - claim.created_ms) / 1000
    deadline = received_seconds + (claim.deadline_ms - claim.now_ms) / 1000 if claim.deadline_ms > 0 else None
    if job.demotable and job.deadline_seconds is not None:
        deadline = arrival + job.deadline_seconds  # a wish, which the queue does not know of
    objective = job.objective
    return RequestSpec(
        request_id=request_id(claim.job_id, choice),
        epoch=claim.epoch,
        prompt_token_ids=prompt,
        sampling=_sampling(job.sampling, _choice_seed(claim.seed, choice), grammar),
        max_tokens=max_tokens,
        generated_token_ids=answer.token_ids(choice),
        stop_strings=job.sampling.stop,
        tenant=job.tenant,
        priority=BAND[job.priority],
        arrival_seconds=arrival,
        deadline_seconds=deadline,
        is_demotable=job.demotable,
        objective=None if objective is None else Objective(objective.ttft_seconds, objective.tpot_seconds),
        # The first choice computes the prompt, the others branch off it.
        fork_of=request_id(claim.job_id, 0) if choice else None,
    )


def _choice_seed(seed: int, choice: int) -> int:
    """Choice 0 draws with the job's own seed, the others with seeds far from it; the same on any worker."""
    return (seed + choice * _GOLDEN_GAMMA) & _SEED_MASK


def _sampling(params: SamplingParams, seed: int, grammar: str | None) -> Sampling:
    return Sampling(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        seed=seed,
        stop_token_ids=frozenset(params.stop_token_ids),
        min_tokens=params.min_tokens,
        ignore_eos=params.ignore_eos,
        logit_bias=tuple(sorted(params.logit_bias.items())),
        logprobs=params.logprobs,
        grammar=grammar,
    )


def _job_error(error: RequestError, job: Job) -> JobError:
    # "invalid_request" is the engine's most general word; to a producer it is an invalid job.
    code = "invalid_job" if error.code == "invalid_request" else error.code
    if isinstance(error, GrammarError | UnsupportedError) and job.constraint is not None:
        param = f"constraint.{field_of(job.constraint)}"
    else:  # what the engine does not name is about the text: too long, empty, half a character
        param = error.field or next(
            name for name in ("messages", "prompt", "prompt_token_ids") if getattr(job, name) is not None
        )
    return JobError(code, str(error), param)


def _token_logprob(logprobs: TextLogprobs, tokenizer: Tokenizer) -> TokenLogprob:
    token_id, raw, logprob = logprobs.chosen
    top = tuple(
        TopLogprob(other, _token_text(other, other_raw, tokenizer), other_raw, other_logprob)
        for other, other_raw, other_logprob in logprobs.top
    )
    return TokenLogprob(token_id, _token_text(token_id, raw, tokenizer), raw, logprob, top)


def _token_text(token_id: int, raw: bytes, tokenizer: Tokenizer) -> str:
    """The token's own text; a special token, which adds none, by its name."""
    return raw.decode("utf-8", "replace") if raw else tokenizer.token_label(token_id)
