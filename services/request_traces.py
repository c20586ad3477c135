"""A gateway's spans: one per HTTP request, from its first byte to the last byte of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from headway.services.tracing import Tracing, parent_of, traceparent_of

_NAMES: Final = {
    "model": "gen_ai.request.model",
    "tenant": "headway.tenant",
    "priority": "headway.priority",
    "job": "headway.job.id",
    "error": "error.type",
}
"""Fields of the request's log line, under OpenTelemetry's names where it has them."""


class HttpSpan:
    """See ``gateway/tracing.py``."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        """What jobs carry."""
        return traceparent_of(self._span.get_span_context())

    def end(self, *, name: str, status: int, fields: Mapping[str, str]) -> None:
        """Name it by its route, and say how it ended; a refusal is the client's error, not the span's."""
        method, _, route = name.partition(" ")
        self._span.update_name(name)
        self._span.set_attributes(
            {"http.request.method": method, "http.route": route, "http.response.status_code": status}
        )
        for field, value in fields.items():
            if field in _NAMES:
                self._span.set_attribute(_NAMES[field], value)
        if status >= 500:
            self._span.set_status(Status(StatusCode.ERROR, fields.get("error", "")))
        self._span.end()


class HttpTraces:
    """Opens a server span for each request."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracer = tracing.tracer

    def begin(self, *, traceparent: str | None) -> HttpSpan:
        """A child of the client's span, or the first of a new trace."""
        parent = parent_of(traceparent)
        context = None if parent is None else trace.set_span_in_context(trace.NonRecordingSpan(parent))
        return HttpSpan(self._tracer.start_span("request", context, kind=SpanKind.SERVER))
