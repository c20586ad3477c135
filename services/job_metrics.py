"""What each job that ended here came to: its phases, its tokens, its promises.

    accepted ──queue──► started ──prefill──► first token ──decode──► last token
                        └──────────────── inference ───────────────┘

An objective is met when the first token came within ``ttft_seconds`` of acceptance and the others within
``tpot_seconds`` on average; goodput is the rate of jobs that met theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from headway.engine.values import Objective
from headway.gateway.latency_histogram import LatencyHistogram, LatencyHistograms
from headway.gateway.tenant_labels import TenantLabels
from headway.queueing.events import EndReason
from headway.queueing.messages import Job, Priority
from headway.services.claimed_job import ClaimedJob
from headway.services.journeys import Journey
from headway.services.translate import BAND

PHASE_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TENANT_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Few: there are as many histograms as tenants."""
TPOT_BUCKETS: Final = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)
TOKEN_BUCKETS: Final = (1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)
SLACK_BUCKETS: Final = (-60.0, -10.0, -1.0, 0.0, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Below 0: the first token came after the deadline."""
OUTCOMES: Final = ("met", "ttft_missed", "tpot_missed", "both_missed", "failed")


class JobMetrics:
    """Observes the ends of jobs; lives on the I/O loop. ``objectives``: by class, best first."""

    def __init__(
        self,
        model: str,
        registry: CollectorRegistry,
        tenants: TenantLabels,
        *,
        objectives: Sequence[Objective] = (),
    ) -> None:
        self._model = model
        self._registry = registry
        self._label_of = tenants
        self._objectives = objectives
        told = "Acceptance to the first token in the queue, by tenant."
        name, labels = "headway_tenant_ttft_seconds", ("model", "tenant")
        self._first = LatencyHistograms(name, told, labels, TENANT_BUCKETS, registry)
        phase = "request_{}_seconds"
        self.queue = self._phase(phase.format("queue"), "Acceptance to the first step here.", PHASE_BUCKETS)
        self.prefill = self._phase(phase.format("prefill"), "First step to first token.", PHASE_BUCKETS)
        self.decode = self._phase(phase.format("decode"), "First token to the last.", PHASE_BUCKETS)
        self.inference = self._phase(phase.format("inference"), "First step to last token.", PHASE_BUCKETS)
        told = "Mean time of each token after the first, of a whole answer."
        self.per_token = self._phase("request_tpot_seconds", told, TPOT_BUCKETS)
        self.prompt = self._phase("request_prompt_tokens", "Tokens of a job's prompt.", TOKEN_BUCKETS)
        self.answer = self._phase("request_completion_tokens", "Tokens of a job's answer.", TOKEN_BUCKETS)
        told = "Time left to the job's deadline when its first token was in the queue."
        self.slack = self._phase("deadline_slack_seconds", told, SLACK_BUCKETS)
        told = "Jobs with an objective by what became of it; the rate of those that met it is the goodput."
        self.judged = Counter(
            "headway_objective_jobs", told, ("model", "priority", "outcome"), registry=registry
        )
        for priority in Priority:  # present from the start, so that a rate over the first one is not lost
            for outcome in OUTCOMES:
                self.judged.labels(model, priority.value, outcome)

    def first_token(self, job: Job, seconds: float) -> None:
        """The first token is in the queue, so long after acceptance."""
        self._first.labels(self._model, self._label_of(job.tenant)).observe(seconds)
        if job.deadline_seconds is not None:
            self.slack.observe(job.deadline_seconds - seconds)

    def ended(self, claimed: ClaimedJob, reason: EndReason, journeys: Sequence[Journey]) -> None:
        """A job's terminal event is in the queue."""
        if claimed.prepared is None:
            return
        job, first, last = claimed.prepared.job, claimed.first_written_seconds, claimed.last_written_seconds
        self.prompt.observe(claimed.prompt_tokens)
        self.answer.observe(claimed.answer.completion_tokens)
        accepted = claimed.received_seconds - claimed.age_seconds_at_claim
        starts = [journey.started for journey in journeys if journey.started is not None]
        if starts and not claimed.answer.resumed_tokens:
            self.queue.observe(max(0.0, min(starts) - accepted))
            if first is not None and last is not None:
                self.prefill.observe(first - min(starts))
                self.decode.observe(last - first)
                self.inference.observe(last - min(starts))
        per_token = _per_token(claimed)
        if per_token is not None:
            self.per_token.observe(per_token)
        self._judge(job, reason, None if first is None else first - accepted, per_token or 0.0)

    def _judge(self, job: Job, reason: EndReason, ttft: float | None, tpot: float) -> None:
        objective = self._objective_of(job)
        if objective is None or reason is EndReason.CANCELLED:
            return
        if reason in {EndReason.ERROR, EndReason.DEADLINE}:
            outcome = "failed"
        elif ttft is None:  # its first token came from another worker, which alone knows when
            return
        else:
            is_late, is_slow = ttft > objective.ttft_seconds, tpot > objective.tpot_seconds
            outcome = {
                (False, False): "met",
                (True, False): "ttft_missed",
                (False, True): "tpot_missed",
                (True, True): "both_missed",
            }[is_late, is_slow]
        self.judged.labels(self._model, job.priority.value, outcome).inc()

    def _objective_of(self, job: Job) -> Objective | None:
        if job.objective is not None:
            return Objective(job.objective.ttft_seconds, job.objective.tpot_seconds)
        band = BAND[job.priority]
        return self._objectives[band] if band < len(self._objectives) else None

    def _phase(self, name: str, told: str, buckets: Sequence[float]) -> LatencyHistogram:
        return LatencyHistogram(f"headway_{name}", told, {"model": self._model}, buckets, self._registry)


def _per_token(claimed: ClaimedJob) -> float | None:
    """Mean time of each token after the first, of each choice; None where there is none, or of a part."""
    first, last, prepared = claimed.first_written_seconds, claimed.last_written_seconds, claimed.prepared
    if first is None or last is None or prepared is None or claimed.answer.resumed_tokens:
        return None
    tokens = claimed.answer.completion_tokens / max(1, prepared.job.sampling.n)
    return (last - first) / (tokens - 1) if tokens > 1 else None
