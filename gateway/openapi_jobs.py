"""Schemas of jobs, their answers and the events of their streams; of files and batches."""

from __future__ import annotations

from typing import Final

from headway.gateway.openapi_words import (
    COUNT,
    FLAG,
    INTEGER,
    METADATA,
    NUMBER,
    TEXT,
    Schema,
    array,
    const,
    listed,
    nullable,
    obj,
    one_of,
    page,
    ref,
    tagged,
)
from headway.queueing.batch import BatchState
from headway.queueing.events import EndReason, JobState
from headway.queueing.messages import Priority

_REASON: Final = one_of(*EndReason)
_STATUS: Final = one_of(*JobState)
_LINKS: Final = {"url": TEXT, "stream_url": TEXT, "result_url": TEXT, "cancel_url": TEXT}
_MS: Final = nullable(INTEGER)
_SECONDS: Final = nullable(INTEGER)
_TOKEN: Final = {"token": TEXT, "logprob": NUMBER, "bytes": array(COUNT), "token_id": COUNT}
_LOGPROBS: Final = nullable(array(obj(_TOKEN | {"top": array(obj(_TOKEN))})))
_JOB_ERROR: Final = nullable(obj({"code": TEXT, "message": TEXT, "param": nullable(TEXT)}))
_USAGE: Final = obj(
    {"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT, "cached_tokens": COUNT}
)
_RECORD: Final = {
    "id": TEXT,
    "status": _STATUS,
    "reason": nullable(_REASON),
    "model": TEXT,
    "tenant": TEXT,
    "priority": one_of(*Priority),
    "committed_tokens": COUNT,
    "attempts": COUNT,
    "worker": nullable(TEXT),
    "created_ms": INTEGER,
    "started_ms": _MS,
    "finished_ms": _MS,
    "deadline_ms": _MS,
    "cancel_reason": nullable(TEXT),
    "error": _JOB_ERROR,
    "metadata": METADATA,
} | _LINKS

JOB_SCHEMAS: Final[dict[str, Schema]] = {
    "JobAccepted": tagged("job", {"id": TEXT, "status": _STATUS, "created": FLAG} | _LINKS),
    "JobRecord": tagged("job", _RECORD),
    "Job": tagged("job", _RECORD | {"result": nullable(ref("JobResult"))}),
    "JobCancel": tagged(
        "job", {"id": TEXT, "status": one_of("cancelled", "cancelling", "finished")} | _LINKS
    ),
    "JobResult": tagged(
        "job.result",
        {
            "id": TEXT,
            "reason": _REASON,
            "choices": array(
                obj(
                    {
                        "index": COUNT,
                        "text": TEXT,
                        "token_ids": array(COUNT),
                        "finish_reason": _REASON,
                        "logprobs": _LOGPROBS,
                    }
                )
            ),
            "usage": _USAGE,
            "error": _JOB_ERROR,
        },
    ),
    "JobEvent": {
        "anyOf": [
            obj(
                {
                    "choice": COUNT,
                    "text": TEXT,
                    "token_ids": array(COUNT),
                    "logprobs": _LOGPROBS,
                    "finish_reason": nullable(_REASON),
                }
            ),
            obj(
                {
                    "reason": _REASON,
                    "choices": array(obj({"index": COUNT, "finish_reason": _REASON, "tail": TEXT})),
                    "usage": _USAGE,
                    "error": _JOB_ERROR,
                }
            ),
            ref("Error"),
        ]
    },
}

FILE_SCHEMAS: Final[dict[str, Schema]] = {
    "File": tagged(
        "file",
        {
            "id": TEXT,
            "bytes": COUNT,
            "created_at": INTEGER,
            "expires_at": INTEGER,
            "filename": TEXT,
            "purpose": one_of("batch", "batch_output", "user_data"),
            "status": const("processed"),
            "status_details": nullable(TEXT),
        },
    ),
    "FilePage": page(ref("File")),
    "FileDeleted": tagged("file", {"id": TEXT, "deleted": {"const": True}}),
    "Batch": tagged(
        "batch",
        {
            "id": TEXT,
            "endpoint": TEXT,
            "model": nullable(TEXT),
            "errors": nullable(
                listed(
                    obj(
                        {
                            "code": TEXT,
                            "message": TEXT,
                            "line": nullable(INTEGER),
                            "param": nullable(TEXT),
                        }
                    )
                )
            ),
            "input_file_id": TEXT,
            "completion_window": TEXT,
            "status": one_of(*BatchState),
            "output_file_id": nullable(TEXT),
            "error_file_id": nullable(TEXT),
            "created_at": INTEGER,
            "in_progress_at": _SECONDS,
            "expires_at": INTEGER,
            "finalizing_at": _SECONDS,
            "completed_at": _SECONDS,
            "failed_at": _SECONDS,
            "expired_at": _SECONDS,
            "cancelling_at": _SECONDS,
            "cancelled_at": _SECONDS,
            "request_counts": obj({"total": COUNT, "completed": COUNT, "failed": COUNT}),
            "usage": obj(
                {
                    "input_tokens": COUNT,
                    "input_tokens_details": obj({"cached_tokens": COUNT}),
                    "output_tokens": COUNT,
                    "output_tokens_details": obj({"reasoning_tokens": COUNT}),
                    "total_tokens": COUNT,
                }
            ),
            "metadata": METADATA,
        },
    ),
    "BatchPage": page(ref("Batch")),
}
