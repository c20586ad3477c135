"""OpenAI's response object, made of a job, its record and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from headway.gateway.answer_form import AnswerForm
from headway.gateway.response_ids import message_id_of, response_id_of
from headway.gateway.response_items import output_items
from headway.gateway.response_jobs import STORE, form_of_thinking
from headway.queueing.events import (
    EndReason,
    JobError,
    JobResult,
    JobState,
    JobStatus,
    Usage,
)
from headway.queueing.messages import Job

STATUS: Final = {
    EndReason.STOP: "completed",
    EndReason.LENGTH: "incomplete",
    EndReason.CANCELLED: "cancelled",
    EndReason.DEADLINE: "failed",
    EndReason.ERROR: "failed",
}
"""What a response that ended so is."""
_RUNNING: Final = {JobState.QUEUED: "queued", JobState.RUNNING: "in_progress"}


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """What all objects of one response share."""

    job_id: str
    job: Job
    created_unix: int

    @property
    def message_id(self) -> str:
        """The id of the message that answers."""
        return message_id_of(self.job_id)

    @property
    def answer_form(self) -> AnswerForm:
        """How its text is read, which is settled when it is posted."""
        return form_of_thinking(self.job)

    def begun(self, status: str) -> dict[str, object]:
        """The response before its end, as ``queued`` or ``in_progress``."""
        return self._object(status)

    def now(self, status: JobStatus, result: JobResult | None) -> dict[str, object]:
        """The response as a job's record and answer say; without its answer the job has not ended."""
        if result is None:
            return self.begun(_RUNNING.get(status.state, "in_progress"))
        return self.ended(result, status.finished_ms // 1000)

    def ended(self, result: JobResult, completed_unix: int) -> dict[str, object]:
        """The response after its end."""
        status = STATUS[result.reason]
        made = self._object(status)
        made["output"] = output_items(self.answer_form, result)
        made["usage"] = usage_object(result.usage)
        made["error"] = _error(result)
        if status == "incomplete":
            made["incomplete_details"] = {"reason": "max_output_tokens"}
        if status == "completed":
            made["completed_at"] = completed_unix
        return made

    def _object(self, status: str) -> dict[str, Any]:
        job, notes = self.job, self.job.notes
        has_instructions = bool(notes.get("instructions")) and bool(job.messages)
        return {
            "id": response_id_of(self.job_id),
            "object": "response",
            "created_at": self.created_unix,
            "completed_at": None,
            "status": status,
            "background": notes.get("background", False),
            "error": None,
            "incomplete_details": None,
            "instructions": job.messages[0].content if has_instructions and job.messages else None,
            "max_output_tokens": job.sampling.max_tokens,
            "max_tool_calls": None,
            "metadata": job.metadata,
            "model": job.model,
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": notes.get("previous_response_id"),
            "prompt_cache_key": notes.get("prompt_cache_key"),
            "reasoning": {"effort": None, "summary": None},
            "safety_identifier": notes.get("safety_identifier"),
            "service_tier": "default",
            "store": notes.get(STORE, True),
            "temperature": job.sampling.temperature,
            "text": {"format": _format(job)},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": job.sampling.logprobs or 0,
            "top_p": job.sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": notes.get("user"),
        }


def form_of(status: JobStatus, job: Job) -> ResponseForm:
    """The form of a job that is a response."""
    return ResponseForm(status.job_id, job, status.created_ms // 1000)


def usage_object(usage: Usage) -> dict[str, object]:
    """A response's ``usage``."""
    return {
        "input_tokens": usage.prompt_tokens,
        # Nobody pays for what is written to the prefix cache; the client's type wants the member.
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _error(result: JobResult) -> dict[str, object] | None:
    match result.reason:
        case EndReason.ERROR:
            error = result.error or JobError("internal_error", f"job {result.job_id} failed")
        case EndReason.DEADLINE:
            error = result.error or JobError("deadline_exceeded", "the deadline passed")
        case _:
            return None
    return {"code": error.code, "message": error.message}


def _format(job: Job) -> dict[str, object]:
    notes = job.notes
    kind = notes.get("format", "text")
    if kind != "json_schema" or job.constraint is None:
        return {"type": kind}
    return {
        "type": kind,
        "name": notes.get("format_name"),
        "description": notes.get("format_description"),
        "schema": job.constraint.json_schema,
        "strict": notes.get("format_strict", True),
    }
