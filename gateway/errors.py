"""What the gateway answers when it cannot answer: one error type, in OpenAI's shape.

Which status for what (clients of OpenAI retry 408, 409, 429 and 5xx unless ``x-should-retry`` says no):

400 the request, or the job once its worker saw it, can never work as it is
404 no such path, model or job                    405 415 413 422-like cases as usual in HTTP
401 no API key, or an unknown one                 403 a model or class that the tenant may not use
409 idempotency key with another body, or a job cancelled by someone else; not to be retried
429 a limit of your tenant is used up: ``Retry-After`` says when, ``x-headway-reason`` which
503 no capacity or no queue now: ``Retry-After`` says when, ``x-headway-reason`` why
504 the job's own deadline passed; not to be retried, the next try would be late as well
500 the job failed in its worker; not to be retried, since the queue has retried it already
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from headway.gateway.quota_headers import quota_headers
from headway.queueing.errors import (
    IdempotencyConflictError,
    InvalidJobError,
    NotAllowedError,
    QueueFullError,
    QueueingError,
    QueueUnavailableError,
    QuotaExceededError,
    UnknownJobError,
    UnreadableRecordError,
)
from headway.queueing.events import EndEvent, EndReason, JobError, JobResult
from headway.queueing.quota_values import QuotaLimit

NO_RETRY: Final = {"x-should-retry": "false"}
LONG_WAIT_SECONDS: Final = 120.0
"""From here on OpenAI's clients ignore ``Retry-After`` and try at once: they are told not to."""

QUOTA_CODES: Final = {
    QuotaLimit.RPM: "requests_per_minute_exceeded",
    QuotaLimit.TPM: "tokens_per_minute_exceeded",
    QuotaLimit.CONCURRENCY: "concurrency_exceeded",
    QuotaLimit.QUEUED_JOBS: "queued_jobs_exceeded",
    QuotaLimit.QUEUED_TOKENS: "queued_tokens_exceeded",
    QuotaLimit.DAILY_TOKENS: "daily_tokens_exceeded",
}


class ApiError(Exception):
    """A refusal with its HTTP status and words; ``code`` is stable, ``param`` names the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        kind: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind or ("invalid_request_error" if status < 500 else "server_error")
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, object]:
        """OpenAI's error object: all four members are always there."""
        return {
            "error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code},
        }


class ClientGoneError(Exception):
    """The client closed the connection; nobody is left to answer."""


class TurnsFullError(Exception):
    """As many checks of one tenant wait for a turn as may; whoever asked makes a 429 of it."""


def invalid_request(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """A 400: the request can never work as it is."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, *, reason: str, retry_after_seconds: float) -> ApiError:
    """A 503 that says why in ``x-headway-reason`` and when to come back in ``Retry-After``."""
    headers = _retry_headers(reason, retry_after_seconds)
    return ApiError(503, message, code=reason, headers=headers)


def too_many_requests(message: str, *, reason: str, retry_after_seconds: float) -> ApiError:
    """A 429: too much of one tenant's own at once; when to come back is in ``Retry-After``."""
    headers = _retry_headers(reason, retry_after_seconds)
    return ApiError(429, message, code=reason, kind="requests", headers=headers)


def _retry_headers(reason: str, retry_after_seconds: float) -> dict[str, str]:
    return {
        "retry-after": str(max(1, math.ceil(retry_after_seconds))),
        "retry-after-ms": str(max(1, math.ceil(retry_after_seconds * 1000))),
        "x-headway-reason": reason,
    }


def _quota_exceeded(error: QuotaExceededError) -> ApiError:
    """A 429 in OpenAI's terms: ``type`` is requests or tokens, the code names the limit."""
    code = QUOTA_CODES[error.limit]
    headers = _retry_headers(code, error.retry_after_seconds) | quota_headers(error.standing)
    if error.retry_after_seconds > LONG_WAIT_SECONDS:
        headers |= NO_RETRY
    return ApiError(
        429, str(error), code=code, kind="tokens" if "tokens" in code else "requests", headers=headers
    )


def shutting_down(job_ids: tuple[str, ...] = ()) -> ApiError:
    """The gateway stops; jobs that it accepted live on in the queue."""
    follow = "".join(f"; job {job_id} goes on: GET /v1/jobs/{job_id}/stream" for job_id in job_ids)
    return unavailable(
        f"this gateway is shutting down{follow}", reason="shutting_down", retry_after_seconds=1
    )


def stream_damaged(job_id: str) -> ApiError:
    """A 500: somebody else wrote into the job's token stream or took from it; its answer is kept apart."""
    return ApiError(
        500,
        f"the token stream of job {job_id} was damaged, its end is missing; "
        f"the answer is kept at /v1/jobs/{job_id}/result",
        code="stream_damaged",
        headers=NO_RETRY,
    )


def internal_error() -> ApiError:
    """A 500 for what we did not foresee; the log has the rest under the request id."""
    return ApiError(
        500,
        "the gateway failed on this request; its log has the cause under the x-request-id",
        code="internal_error",
    )


def from_queueing(error: QueueingError) -> ApiError:  # noqa: PLR0911 # one return for each kind of error
    """What an error of the queue means to the client."""
    match error:
        case InvalidJobError(code="job_too_large"):
            return ApiError(413, str(error), code=error.code, param=error.param)
        case InvalidJobError():
            return invalid_request(str(error), param=error.param, code=error.code)
        case UnknownJobError():
            return ApiError(404, str(error), code="job_not_found", headers=NO_RETRY)
        case IdempotencyConflictError():
            return ApiError(
                409, str(error), code="idempotency_conflict", param="Idempotency-Key", headers=NO_RETRY
            )
        case NotAllowedError():
            return ApiError(403, str(error), code="not_allowed", param=error.param, headers=NO_RETRY)
        case QuotaExceededError():
            return _quota_exceeded(error)
        case QueueFullError():
            return unavailable(str(error), reason="queue_full", retry_after_seconds=error.retry_after_seconds)
        case QueueUnavailableError():
            return unavailable(
                str(error), reason="queue_unavailable", retry_after_seconds=error.retry_after_seconds
            )
        case UnreadableRecordError():
            return ApiError(500, str(error), code="record_unreadable", headers=NO_RETRY)
        case _:
            return unavailable(str(error), reason="queue_unsuitable", retry_after_seconds=30)


def from_end(end: EndEvent | JobResult, job_id: str) -> ApiError | None:
    """The error that a job's end means to the client, or None for a complete answer."""
    match end.reason:
        case EndReason.STOP | EndReason.LENGTH:
            return None
        case EndReason.DEADLINE:
            if end.error is not None:
                return ApiError(
                    504, end.error.message, code=end.error.code, param=end.error.param, headers=NO_RETRY
                )
            message = f"the deadline passed; what was generated is kept at /v1/jobs/{job_id}/result"
            return ApiError(504, message, code="deadline_exceeded", headers=NO_RETRY)
        case EndReason.CANCELLED:
            return ApiError(409, f"job {job_id} was cancelled", code="cancelled", headers=NO_RETRY)
        case EndReason.ERROR:
            return _from_job_error(end.error or JobError("internal_error", f"job {job_id} failed"))


def _from_job_error(error: JobError) -> ApiError:
    if not error.is_callers_fault:
        return ApiError(500, error.message, code=error.code, param=error.param, headers=NO_RETRY)
    status = 413 if error.code == "job_too_large" else 400
    return ApiError(status, error.message, code=error.code, param=error.param)
