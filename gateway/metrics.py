"""What the gateway counts and times, under the names that dashboards use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headway.gateway.latency_histogram import LatencyHistogram, LatencyHistograms
from headway.gateway.queue_metrics import QueueMetrics
from headway.gateway.tenant_labels import TenantLabels
from headway.queueing.events import EndEvent, EndReason, StreamEvent, TokenEvent

# From one step of a small model on a GPU to a long wait in the queue.
_LATENCY: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
_LAG: Final = (0.0001, 0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)
_BETWEEN_TOKENS: Final = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 10)


class Metrics:
    """All metrics of one gateway process; label values that clients choose are capped."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        max_tenants: int,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self.registry = registry
        self.tenant = TenantLabels(max_tenants)
        """The label value of a tenant."""
        self.queue = QueueMetrics(registry, self.tenant, clock=clock, wall_clock=wall_clock)
        self._http()
        self._jobs()
        self._streams()

    def _http(self) -> None:
        labels = ("method", "route", "status")
        self.requests = self._counter("http_requests", "HTTP requests by route and status.", *labels)
        told = "Time from request to the last byte of its answer."
        self.request_seconds = self._latency("http_request_seconds", told, "route")
        self.refused = self._counter("refused_requests", "Requests refused, by their error's code.", "code")
        self.open_streams = self._gauge("gateway_open_streams", "Event streams open now.")

    def _jobs(self) -> None:
        whose = ("model", "tenant")
        self.accepted = self._counter("gateway_jobs_accepted", "Jobs accepted.", *whose, "priority")
        told = "Jobs this gateway posted and waited for, by terminal reason."
        self.jobs = self._counter("gateway_jobs", told, *whose, "reason")
        self.prompt_tokens = self._counter("gateway_prompt_tokens", "Prompt tokens.", *whose)
        self.completion_tokens = self._counter("gateway_completion_tokens", "Generated tokens.", *whose)
        told = "Time from request to its first token, queueing included."
        self.first_token_seconds = self._latency("gateway_time_to_first_token_seconds", told, "model")
        told = "Time from request to the job's end."
        self.job_seconds = self._latency("gateway_job_seconds", told, "model")
        self.inter_token_seconds = LatencyHistograms(
            "headway_gateway_inter_token_seconds",
            "Time between the tokens of a stream, as its reader sees it.",
            ("model",),
            _BETWEEN_TOKENS,
            self.registry,
        )

    def _streams(self) -> None:
        self.lag_seconds = LatencyHistogram(
            "headway_gateway_stream_lag_seconds",
            "How long a stream's frames, read from the queue, waited for their reader to take them.",
            {},
            _LAG,
            self.registry,
        )
        told = "Submits that named a job accepted before, by key: nothing ran twice."
        self.repeated = self._counter("gateway_repeated_submits", told, "model")

    def _counter(self, name: str, told: str, *labels: str) -> Counter:
        return Counter(f"headway_{name}", told, labels, registry=self.registry)

    def _gauge(self, name: str, told: str, *labels: str) -> Gauge:
        return Gauge(f"headway_{name}", told, labels, registry=self.registry)

    def _latency(self, name: str, told: str, *labels: str) -> Histogram:
        return Histogram(f"headway_{name}", told, labels, buckets=_LATENCY, registry=self.registry)


class JobMeter:
    """Times one job as its HTTP client sees it."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        model: str,
        tenant: str,
        started: float,
        clock: Callable[[], float],
        streams: bool,
    ) -> None:
        self._metrics = metrics
        self._model = model
        self._tenant = metrics.tenant(tenant)
        self._started = started
        self._clock = clock
        self._streams = streams
        self._last_token: dict[int, float] = {}
        self._has_ended = False

    def saw(self, event: StreamEvent) -> None:
        """Count one event of the job."""
        match event:
            case TokenEvent(choice=choice, token_ids=token_ids):
                self._token(choice, len(token_ids))
            case EndEvent():
                self._metrics.prompt_tokens.labels(self._model, self._tenant).inc(event.usage.prompt_tokens)
                self._metrics.completion_tokens.labels(self._model, self._tenant).inc(
                    event.usage.completion_tokens
                )
                self.ended(event.reason)

    def ended(self, reason: EndReason) -> None:
        """Count the job's end, once."""
        if not self._has_ended:
            self._has_ended = True
            self._metrics.jobs.labels(self._model, self._tenant, reason.value).inc()
            self._metrics.job_seconds.labels(self._model).observe(self._clock() - self._started)

    def _token(self, choice: int, count: int) -> None:
        now = self._clock()
        if not self._last_token:
            self._metrics.first_token_seconds.labels(self._model).observe(now - self._started)
        elif choice in self._last_token and self._streams and count:
            # Without a stream the reads are paced, so the times between them say nothing.
            self._metrics.inter_token_seconds.labels(self._model).observe(
                (now - self._last_token[choice]) / count
            )
        self._last_token[choice] = now
