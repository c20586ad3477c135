"""A request's span, if somebody traces: the gateway's side of ``services/request_traces.py``.

The span's ``traceparent`` takes the place of the client's, so whatever the request's jobs do is told under
it; the span itself is a child of the client's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from starlette.types import Scope

HEADER: Final = b"traceparent"


class RequestSpan(Protocol):
    """One request, while it lasts."""

    @property
    def traceparent(self) -> str:
        """The span's name in W3C Trace Context."""
        ...

    def end(self, *, name: str, status: int, fields: Mapping[str, str]) -> None:
        """The answer is over."""
        ...


class RequestTraces(Protocol):
    """Opens spans."""

    def begin(self, *, traceparent: str | None) -> RequestSpan:
        """A request came, with the client's ``traceparent`` header, if any."""
        ...


def trace(traces: RequestTraces, scope: Scope) -> RequestSpan:
    """Open a request's span and put its name where handlers look for the client's."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    given = [value for name, value in headers if name == HEADER]
    # Several are none, as W3C Trace Context has it.
    span = traces.begin(traceparent=given[0].decode("latin-1") if len(given) == 1 else None)
    others = [(name, value) for name, value in headers if name != HEADER]
    scope["headers"] = [*others, (HEADER, span.traceparent.encode())]
    return span
