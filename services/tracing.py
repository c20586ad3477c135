"""OpenTelemetry, if somebody collects: spans go out over OTLP/HTTP from a thread of its own, in batches.

Nothing waits for the collector: what it does not take in time is dropped. Sampling follows ``traceparent``
and the SDK's own variables: ``OTEL_TRACES_SAMPLER``, ``OTEL_EXPORTER_OTLP_HEADERS``, ``OTEL_SERVICE_NAME``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headway import __version__

TRACES_PATH: Final = "/v1/traces"
Attributes = Mapping[str, str | int | float | bool]


class Tracing:
    """One process's tracer. ``close`` sends what is left, within a few seconds."""

    def __init__(self, provider: TracerProvider, ids: ChosenIds) -> None:
        self._provider = provider
        self.ids = ids
        self.tracer = provider.get_tracer("headway", __version__)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


class ChosenIds(RandomIdGenerator):
    """Random ids, but for a span whose id somebody else has to know without being told."""

    def __init__(self) -> None:
        self.trace_id: int | None = None
        self.span_id: int | None = None

    def generate_span_id(self) -> int:
        """The chosen id, once; else a random one."""
        chosen, self.span_id = self.span_id, None
        return super().generate_span_id() if chosen is None else chosen

    def generate_trace_id(self) -> int:
        """The chosen id, once; else a random one."""
        chosen, self.trace_id = self.trace_id, None
        return super().generate_trace_id() if chosen is None else chosen


def open_tracing(url: str, *, service: str, instance: str, exporter: SpanExporter | None = None) -> Tracing:
    """A tracer that sends to the collector at ``url``, or into ``exporter`` (for tests)."""
    ids = ChosenIds()
    resource = Resource.create(
        {
            SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME") or service,
            SERVICE_INSTANCE_ID: instance,
            SERVICE_VERSION: __version__,
        }
    )
    provider = TracerProvider(resource=resource, id_generator=ids, shutdown_on_exit=False)
    whole = url if url.endswith(TRACES_PATH) else url.rstrip("/") + TRACES_PATH
    provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter(endpoint=whole)))
    return Tracing(provider, ids)


def parent_of(traceparent: str | None) -> trace.SpanContext | None:
    """The context that a ``traceparent`` names; None where there is none, or it is malformed."""
    if traceparent is None:
        return None
    found = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    context = trace.get_current_span(found).get_span_context()
    return context if context.is_valid else None


def traceparent_of(context: trace.SpanContext) -> str:
    """The ``traceparent`` of a span."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def wall_clock_of(clock: Callable[[], float]) -> Callable[[float], int]:
    """From seconds of a monotonic clock to nanoseconds since the epoch, by the offset of this moment."""

    def at(seconds: float) -> int:
        return time.time_ns() + round((seconds - clock()) * 1e9)

    return at


def digest_id(text: str, bits: int) -> int:
    """An id that everybody gets for the same text; never 0, which is no id."""
    return int.from_bytes(sha256(text.encode()).digest()[: bits // 8]) or 1
