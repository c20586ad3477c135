"""A response is a job under another name: its id spells the job's id, so nothing has to be looked up."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from typing import Final

from headway.gateway.errors import NO_RETRY, ApiError
from headway.queueing.ids import JobId

PREFIX: Final = "resp_"


def response_id_of(job_id: str) -> str:
    """``resp_`` and the job's id in URL-safe base64."""
    return PREFIX + _spelled(job_id)


def message_id_of(job_id: str) -> str:
    """The id of the message that answers."""
    return f"msg_{_spelled(job_id)}"


def reasoning_id_of(job_id: str) -> str:
    """The id of the thoughts before that message."""
    return f"rs_{_spelled(job_id)}"


def job_id_of(response_id: str) -> str:
    """The job of a response; raises ApiError 404 for a text that is no response's id."""
    spelled = response_id.removeprefix(PREFIX)
    try:
        job_id = urlsafe_b64decode(spelled + "=" * (-len(spelled) % 4)).decode()
    except (Error, ValueError):
        raise response_not_found(response_id) from None
    if not JobId.is_one(job_id) or response_id_of(job_id) != response_id:
        raise response_not_found(response_id)
    return job_id


def response_not_found(response_id: str) -> ApiError:
    """The answer to whoever names a response that is not there (any more), or not theirs."""
    return ApiError(
        404,
        f"no response {response_id[:200]!r} here: it was never made, not stored, deleted, or its retention "
        "(1 h after the end) has passed",
        code="response_not_found",
        param="response_id",
        headers=NO_RETRY,
    )


def _spelled(job_id: str) -> str:
    return urlsafe_b64encode(job_id.encode()).decode().rstrip("=")
