"""A line that is done: its line in the output or in the errors, and what it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import orjson

from headway.gateway.errors import ApiError, from_end
from headway.queueing.batch import Tally
from headway.queueing.events import EndReason, JobResult

WORDS: Final = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "This request was not executed, because the batch was cancelled.",
}


@dataclass(frozen=True, slots=True)
class Answered:
    """One line of the results."""

    custom_id: str
    text: bytes
    """With its line end."""
    is_error: bool
    tally: Tally


def answered(
    custom_id: str, results: Sequence[JobResult], body: dict[str, object], end_code: str | None
) -> Answered:
    """The line for finished jobs: an answer if all of them have one, else the first one's error.

    ``end_code``: why the batch ends, for jobs that its end cut short.
    """
    tokens = Tally(
        0,
        0,
        sum(result.usage.prompt_tokens for result in results),
        sum(result.usage.completion_tokens for result in results),
        sum(result.usage.cached_tokens for result in results),
    )
    for result in results:
        error = from_end(result, result.job_id)
        if error is None:
            continue
        is_cut_short = result.reason in {EndReason.CANCELLED, EndReason.DEADLINE}
        if is_cut_short and end_code is not None:
            return undone(custom_id, end_code, tokens)
        return refused(custom_id, error, tokens)
    return Answered(
        custom_id, _line(custom_id, _response(custom_id, 200, body), None), False, tokens + Tally(completed=1)
    )


def refused(custom_id: str, error: ApiError, tokens: Tally | None = None) -> Answered:
    """The line for a request that the endpoint would have refused."""
    text = _line(custom_id, _response(custom_id, error.status, error.body()), None)
    return Answered(custom_id, text, True, (tokens or Tally()) + Tally(failed=1))


def undone(custom_id: str, code: str, tokens: Tally | None = None) -> Answered:
    """The line for a request that the batch's end came before."""
    text = _line(custom_id, None, {"code": code, "message": WORDS[code]})
    return Answered(custom_id, text, True, (tokens or Tally()) + Tally(failed=1))


def _response(custom_id: str, status: int, body: dict[str, object]) -> dict[str, object]:
    return {"status_code": status, "request_id": f"req_{_digest(custom_id)}", "body": body}


def _line(custom_id: str, response: dict[str, object] | None, error: dict[str, object] | None) -> bytes:
    record = {
        "id": f"batch_req_{_digest(custom_id)}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return orjson.dumps(record) + b"\n"


def _digest(custom_id: str) -> str:
    return sha256(custom_id.encode(errors="surrogatepass")).hexdigest()[:24]
