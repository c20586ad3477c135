"""What is known of one HTTP request, gathered by its handler for the log line at its end."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, cast
from uuid import uuid4

from starlette.datastructures import Headers
from starlette.types import Scope

from headway.queueing.messages import Job

_SCOPE_KEY: Final = "headway.record"
_CLIENTS_ID = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(slots=True)
class RequestRecord:
    """Owned by the request's own task. Holds names and numbers only, never a prompt or an answer."""

    request_id: str
    started: float
    """On the gateway's monotonic clock."""
    fields: dict[str, str] = field(default_factory=dict[str, str])
    leave: Callable[[], None] | None = None
    """What to call when the request has ended, however it does: it counts as open until then."""

    def about(self, jobs: Sequence[Job]) -> None:
        """Note whose jobs these are."""
        first = jobs[0]
        self.fields |= {"model": first.model, "tenant": first.tenant, "priority": first.priority.value}
        if first.traceparent is not None:
            self.fields["trace"] = first.traceparent.split("-")[1]

    def note(self, *, jobs: Sequence[str] = (), error: str | None = None) -> None:
        """Note the ids of the jobs, and the code of the error that ended the answer."""
        if jobs:
            self.fields["job"] = ",".join(jobs)
        if error is not None:
            self.fields["error"] = error


def open_record(scope: Scope, started: float) -> RequestRecord:
    """A record for this request, under the client's ``X-Request-Id`` if that is a plain name."""
    given = Headers(scope=scope).get("x-request-id", "")
    request_id = given if _CLIENTS_ID.fullmatch(given) else f"req_{uuid4().hex}"
    scope[_SCOPE_KEY] = record = RequestRecord(request_id, started)
    return record


def record_of(scope: Scope) -> RequestRecord:
    """The record that the outermost middleware opened."""
    return cast("RequestRecord", scope[_SCOPE_KEY])
