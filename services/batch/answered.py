"""A line that is done: its line in the output or in the errors, and what it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import orjson

from headway.gateway.errors import ApiError, from_end
from headway.gateway.job_fields import FieldNames, as_asked
from headway.queueing.batch import Tally
from headway.queueing.events import EndReason, JobResult

WORDS: Final = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "This request was not executed, because the batch was cancelled.",
}


@dataclass(frozen=True, slots=True)
class LineName:
    """Which line of which batch."""

    batch_id: str
    custom_id: str

    @property
    def digest(self) -> str:
        """The same at each try; another batch's line of that custom id has another."""
        named = f"{self.batch_id}:{self.custom_id}"
        return sha256(named.encode(errors="surrogatepass")).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Answered:
    """One line of the results."""

    custom_id: str
    text: bytes
    """With its line end."""
    is_error: bool
    tally: Tally


def answered(
    name: LineName,
    results: Sequence[JobResult],
    body: dict[str, object],
    end_code: str | None,
    names: FieldNames,
) -> Answered:
    """The line for finished jobs: an answer if all of them have one, else the first one's error.

    ``end_code``: why the batch ends, for jobs that its end cut short. ``names``: what the line calls the
    jobs' fields.
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
        error = as_asked(error, names)
        is_cut_short = result.reason in {EndReason.CANCELLED, EndReason.DEADLINE}
        if is_cut_short and end_code is not None:
            return undone(name, end_code, tokens)
        return refused(name, error, tokens)
    text = _line(name, _response(name, 200, body), None)
    return Answered(name.custom_id, text, False, tokens + Tally(completed=1))


def refused(name: LineName, error: ApiError, tokens: Tally | None = None) -> Answered:
    """The line for a request that the endpoint would have refused."""
    text = _line(name, _response(name, error.status, error.body()), None)
    return Answered(name.custom_id, text, True, (tokens or Tally()) + Tally(failed=1))


def undone(name: LineName, code: str, tokens: Tally | None = None) -> Answered:
    """The line for a request that the batch's end came before."""
    text = _line(name, None, {"code": code, "message": WORDS[code]})
    return Answered(name.custom_id, text, True, (tokens or Tally()) + Tally(failed=1))


def _response(name: LineName, status: int, body: dict[str, object]) -> dict[str, object]:
    return {"status_code": status, "request_id": f"req_{name.digest}", "body": body}


def _line(name: LineName, response: dict[str, object] | None, error: dict[str, object] | None) -> bytes:
    record = {
        "id": f"batch_req_{name.digest}",
        "custom_id": name.custom_id,
        "response": response,
        "error": error,
    }
    return orjson.dumps(record) + b"\n"
