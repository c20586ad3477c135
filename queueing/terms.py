"""What a tenant's limits mean for one job: whether it may be asked, with which defaults, for how much."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import orjson

from headway.queueing.errors import NotAllowedError, QuotaExceededError
from headway.queueing.messages import Job, Message
from headway.queueing.quota_values import QuotaLimit, Refusal
from headway.queueing.tenants import TenantLimits

BYTES_PER_TOKEN: Final = 4
"""Of English text, roughly. Only the reservation goes by it; what is charged in the end was counted."""
TOKENS_PER_MESSAGE: Final = 4
"""What a chat template adds around each turn, roughly."""
USUAL_ANSWER_TOKENS: Final = 256
"""Reserved for an answer that nobody bounded, as the queue's own estimate has it."""

_ALLOWANCE: Final = {
    QuotaLimit.RPM: "{n} requests per minute",
    QuotaLimit.TPM: "{n} tokens per minute",
    QuotaLimit.CONCURRENCY: "{n} jobs in flight",
    QuotaLimit.QUEUED_JOBS: "{n} waiting jobs",
    QuotaLimit.QUEUED_TOKENS: "{n} tokens in waiting jobs",
    QuotaLimit.DAILY_TOKENS: "{n} tokens per day (UTC)",
}


@dataclass(frozen=True, slots=True)
class Demand:
    """Tokens that a job may take, as far as can be told before it is tokenized."""

    prompt_tokens: int
    answer_tokens: int

    @property
    def tokens(self) -> int:
        """Of prompt and answer together."""
        return self.prompt_tokens + self.answer_tokens


def check_allowed(job: Job, limits: TenantLimits) -> None:
    """Raise NotAllowedError for a model or class that the tenant may not use."""
    if limits.models is not None and job.model not in limits.models:
        raise _not_allowed(job.tenant, "model", job.model, limits.models, "models")
    if limits.classes is not None and job.priority not in limits.classes:
        raise _not_allowed(job.tenant, "priority", job.priority.value, limits.classes, "classes")


def _not_allowed(
    tenant: str, param: str, asked: str, allowed: tuple[str, ...], option: str
) -> NotAllowedError:
    return NotAllowedError(
        f"tenant {tenant} may not use {param} {asked}, but {', '.join(allowed)}; "
        f"an operator allows more with `headway tenants set {tenant} --{option} …`",
        param=param,
    )


def with_defaults(job: Job, limits: TenantLimits) -> Job:
    """The job with the tenant's longest answer and deadline, where it asks for more or says nothing."""
    changes: dict[str, Any] = {}
    if limits.deadline_seconds is not None and job.deadline_seconds is None:
        changes["deadline_seconds"] = limits.deadline_seconds
    cap, sampling = limits.max_tokens, job.sampling
    if cap is not None and (sampling.max_tokens is None or sampling.max_tokens > cap):
        capped = {"max_tokens": cap, "min_tokens": min(sampling.min_tokens, cap)}
        changes["sampling"] = sampling.model_copy(update=capped)
    return job.model_copy(update=changes) if changes else job


def demand_of(job: Job) -> Demand:
    """What to reserve for a job whose defaults are filled in."""
    answer = USUAL_ANSWER_TOKENS if job.sampling.max_tokens is None else job.sampling.max_tokens
    return Demand(_prompt_tokens(job), answer * job.sampling.n)


def _prompt_tokens(job: Job) -> int:
    if job.prompt_token_ids is not None:
        return len(job.prompt_token_ids)
    if job.prompt is not None:
        return _text_tokens(job.prompt)
    tools = len(job.tools) and _text_tokens(orjson.dumps(job.tools).decode())
    return tools + sum(_message_tokens(message) for message in job.messages or ())


def _message_tokens(message: Message) -> int:
    calls = "".join(call.function.name + call.function.arguments for call in message.tool_calls)
    return _text_tokens((message.content or "") + calls) + TOKENS_PER_MESSAGE


def _text_tokens(text: str) -> int:
    return -(-len(text.encode(errors="surrogatepass")) // BYTES_PER_TOKEN)


def _show_wait(seconds: float) -> str:
    """``11.5 s``, ``12 min`` or ``5 h 45 min``."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def exceeded(tenant: str, demand: Demand, refusal: Refusal, limits: TenantLimits) -> QuotaExceededError:
    """A refusal as the error that says which limit, for how long, and who can raise it."""
    limit = refusal.limit
    fewer = ""
    if limit is QuotaLimit.DAILY_TOKENS:
        fewer = (
            f" ({refusal.tokens_left_today} are left, and it may take {demand.tokens}, "
            f"{demand.prompt_tokens} of them for its prompt): ask for fewer tokens, or"
        )
    allowance = _ALLOWANCE[limit].format(n=getattr(limits, limit.value))
    option = limit.value.replace("_", "-")
    return QuotaExceededError(
        f"tenant {tenant} may have {allowance}, which this job would exceed{fewer or ':'} try again in "
        f"{_show_wait(refusal.retry_after_seconds)}; an operator raises the limit with "
        f"`headway tenants set {tenant} --{option} N`",
        limit=limit,
        retry_after_seconds=refusal.retry_after_seconds,
        standing=refusal.standing,
    )
