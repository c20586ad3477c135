"""A worker's spans: what a job's trace tells behind the gateway's own span.

    POST /v1/chat/completions ─┬─ queue                         accepted ─► first claim
                               ├─ attempt 1 ── prefill, decode  claim ─► end, release or loss
                               └─ attempt 2 ── prefill, decode  linked to attempt 1

The id of an attempt's span follows from job and epoch, so the next attempt can link to it without a word from
a worker that was killed; that worker's own span is then missing, and the link is what is left of it. A job
without a ``traceparent`` gets a trace id that follows from its own id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from headway.queueing.events import EndReason
from headway.services.claimed_job import ClaimedJob
from headway.services.journeys import Journey
from headway.services.tracing import Attributes, Tracing, digest_id, parent_of, wall_clock_of

MOST_LINKS: Final = 8


class JobTraces:
    """Tells the trace of each claim when it ends; called on the I/O loop."""

    def __init__(self, tracing: Tracing, worker_id: str, model: str, clock: Callable[[], float]) -> None:
        self._tracing = tracing
        self._worker_id = worker_id
        self._model = model
        self._clock = clock
        self._at = wall_clock_of(clock)

    def ended(self, job: ClaimedJob, reason: EndReason, journeys: Sequence[Journey]) -> None:
        """Its terminal event is in the queue."""
        error = job.error.code if job.error is not None else None
        self._tell(job, reason.value, journeys, error=error or (reason.value if _is_bad(reason) else None))

    def handed_back(self, job: ClaimedJob, journeys: Sequence[Journey]) -> None:
        """It was released unfinished: another worker goes on."""
        self._tell(job, "handed_back", journeys)

    def lost(self, job: ClaimedJob, journeys: Sequence[Journey]) -> None:
        """Another worker has it."""
        self._tell(job, "lost", journeys, error="claim_lost")

    def _tell(
        self, job: ClaimedJob, outcome: str, journeys: Sequence[Journey], *, error: str | None = None
    ) -> None:
        context, trace_id, flags = self._parent(job)
        accepted = self._at(job.received_seconds - job.age_seconds_at_claim)
        claimed = self._at(job.received_seconds)
        if job.claim.epoch <= 1:
            self._tracing.ids.trace_id = trace_id
            waiting = self._start("queue", context, accepted, kind=SpanKind.CONSUMER)
            waiting.end(claimed)
        self._tracing.ids.trace_id, self._tracing.ids.span_id = trace_id, _attempt_id(job, job.claim.epoch)
        links = [
            Link(SpanContext(trace_id, _attempt_id(job, epoch), True, flags), {"headway.epoch": epoch})
            for epoch in range(max(1, job.claim.epoch - MOST_LINKS), job.claim.epoch)
        ]
        name = f"attempt {job.claim.epoch}"
        attempt = self._start(name, context, claimed, links=links, kind=SpanKind.CONSUMER)
        attempt.set_attributes(self._about(job, outcome))
        for journey in journeys:
            for happening, seconds in journey.detours:
                attempt.add_event(happening.value, timestamp=self._at(seconds))
        if error is not None:
            attempt.set_attribute("error.type", error)
            attempt.set_status(Status(StatusCode.ERROR, error))
        self._phases(attempt, job, journeys)
        attempt.end()

    def _phases(self, attempt: Span, job: ClaimedJob, journeys: Sequence[Journey]) -> None:
        starts = [journey.started for journey in journeys if journey.started is not None]
        first, last = job.first_written_seconds, job.last_written_seconds
        if not starts:
            return
        inside = trace.set_span_in_context(attempt)
        prefill = self._start("prefill", inside, self._at(min(starts)))
        prefill.set_attribute("gen_ai.usage.input_tokens", job.prompt_tokens)
        prefill.end(self._at(self._clock() if first is None else first))
        if first is not None and last is not None:
            decode = self._start("decode", inside, self._at(first))
            decode.set_attribute("gen_ai.usage.output_tokens", job.answer.completion_tokens)
            decode.end(self._at(last))

    def _about(self, job: ClaimedJob, outcome: str) -> Attributes:
        about: dict[str, str | int | float | bool] = {
            "gen_ai.request.model": self._model,
            "gen_ai.usage.input_tokens": job.prompt_tokens,
            "gen_ai.usage.output_tokens": job.answer.completion_tokens,
            "headway.job.id": job.job_id,
            "headway.worker.id": self._worker_id,
            "headway.epoch": job.claim.epoch,
            "headway.attempts": job.claim.attempts,
            "headway.resumed_tokens": job.answer.resumed_tokens,
            "headway.outcome": outcome,
        }
        if job.prepared is not None:
            about["headway.tenant"] = job.prepared.job.tenant
            about["headway.priority"] = job.prepared.job.priority.value
        return about

    def _parent(self, job: ClaimedJob) -> tuple[Context | None, int, TraceFlags]:
        """Under what its spans are told: the producer's span, or nothing but a common trace id."""
        parent = None if job.prepared is None else parent_of(job.prepared.job.traceparent)
        if parent is None:
            return None, digest_id(job.job_id, 128), TraceFlags(TraceFlags.SAMPLED)
        context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        return context, parent.trace_id, parent.trace_flags

    def _start(
        self,
        name: str,
        context: Context | None,
        start_ns: int,
        *,
        links: Sequence[Link] = (),
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        return self._tracing.tracer.start_span(name, context, kind=kind, start_time=start_ns, links=links)


def _attempt_id(job: ClaimedJob, epoch: int) -> int:
    return digest_id(f"{job.job_id} attempt {epoch}", 64)


def _is_bad(reason: EndReason) -> bool:
    return reason in {EndReason.ERROR, EndReason.DEADLINE}
