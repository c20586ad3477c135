"""Jobs, events and answers as the jobs API shows them."""

from __future__ import annotations

from headway.gateway.openai_logprobs import native_logprobs
from headway.queueing.events import EndEvent, JobError, JobResult, JobStatus, StreamEvent, TokenEvent, Usage


def links(job_id: str) -> dict[str, str]:
    """Where the rest of a job is."""
    at = f"/v1/jobs/{job_id}"
    return {
        "url": at,
        "stream_url": f"{at}/stream",
        "result_url": f"{at}/result",
        "cancel_url": f"{at}/cancel",
    }


def status_object(status: JobStatus) -> dict[str, object]:
    """A job's record. Times are milliseconds since the epoch, null where it has not come to that."""
    record: dict[str, object] = {
        "id": status.job_id,
        "object": "job",
        "status": status.state.value,
        "reason": None if status.reason is None else status.reason.value,
        "model": status.model,
        "tenant": status.tenant,
        "priority": status.priority.value,
        "committed_tokens": status.committed_tokens,
        "attempts": status.attempts,
        "worker": status.worker,
        "created_ms": status.created_ms,
        "started_ms": status.started_ms or None,
        "finished_ms": status.finished_ms or None,
        "deadline_ms": status.deadline_ms or None,
        "cancel_reason": status.cancel_reason,
        "error": error_object(status.error),
        "metadata": status.metadata,
    }
    return record | links(status.job_id)


def result_object(result: JobResult) -> dict[str, object]:
    """The final answer."""
    return {
        "id": result.job_id,
        "object": "job.result",
        "reason": result.reason.value,
        "choices": [
            {
                "index": index,
                "text": choice.text,
                "token_ids": list(choice.token_ids),
                "finish_reason": choice.finish_reason.value,
                "logprobs": native_logprobs(choice.logprobs) or None,
            }
            for index, choice in enumerate(result.choices)
        ],
        "usage": _usage(result.usage),
        "error": error_object(result.error),
    }


def event_name(event: StreamEvent) -> str:
    """The SSE event type: ``tokens`` or ``end``."""
    return "tokens" if isinstance(event, TokenEvent) else "end"


def event_object(event: StreamEvent) -> dict[str, object]:
    """One event of a job's stream."""
    match event:
        case TokenEvent():
            return {
                "choice": event.choice,
                "text": event.text,
                "token_ids": list(event.token_ids),
                "logprobs": native_logprobs(event.logprobs) or None,
                "finish_reason": None if event.finish_reason is None else event.finish_reason.value,
            }
        case EndEvent():
            return {
                "reason": event.reason.value,
                "choices": [
                    {"index": index, "finish_reason": end.finish_reason.value, "tail": end.tail}
                    for index, end in enumerate(event.choices)
                ],
                "usage": _usage(event.usage),
                "error": error_object(event.error),
            }


def error_object(error: JobError | None) -> dict[str, object] | None:
    """Why a job failed."""
    return None if error is None else {"code": error.code, "message": error.message, "param": error.param}


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
    }
