"""What the gateway counts and times, under the names that dashboards use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headway.queueing.events import EndEvent, EndReason, StreamEvent, TokenEvent

OTHER: Final = "other"

# From one step of a small model on a GPU to a long wait in the queue.
_LATENCY: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
_BETWEEN_TOKENS: Final = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 10)


class Metrics:
    """All metrics of one gateway process; label values that clients choose are capped."""

    def __init__(self, registry: CollectorRegistry, *, max_tenants: int) -> None:
        self.registry = registry
        self._max_tenants = max_tenants
        self._tenants: set[str] = set()
        tenant = ("model", "tenant")
        self.requests = Counter(
            "headway_http_requests",
            "HTTP requests by route and status.",
            ("method", "route", "status"),
            registry=registry,
        )
        self.request_seconds = Histogram(
            "headway_http_request_seconds",
            "Time from request to the last byte of its answer.",
            ("route",),
            buckets=_LATENCY,
            registry=registry,
        )
        self.refused = Counter(
            "headway_refused_requests",
            "Requests refused, by the code of their error.",
            ("code",),
            registry=registry,
        )
        self.jobs = Counter(
            "headway_gateway_jobs",
            "Jobs this gateway posted and waited for, by terminal reason.",
            (*tenant, "reason"),
            registry=registry,
        )
        self.accepted = Counter(
            "headway_gateway_jobs_accepted", "Jobs accepted.", (*tenant, "priority"), registry=registry
        )
        self.prompt_tokens = Counter(
            "headway_gateway_prompt_tokens", "Prompt tokens.", tenant, registry=registry
        )
        self.completion_tokens = Counter(
            "headway_gateway_completion_tokens", "Generated tokens.", tenant, registry=registry
        )
        self.first_token_seconds = Histogram(
            "headway_gateway_time_to_first_token_seconds",
            "Time from request to its first token, queueing included.",
            ("model",),
            buckets=_LATENCY,
            registry=registry,
        )
        self.inter_token_seconds = Histogram(
            "headway_gateway_inter_token_seconds",
            "Time between the tokens of a stream, as its reader sees it.",
            ("model",),
            buckets=_BETWEEN_TOKENS,
            registry=registry,
        )
        self.job_seconds = Histogram(
            "headway_gateway_job_seconds",
            "Time from request to the job's end.",
            ("model",),
            buckets=_LATENCY,
            registry=registry,
        )
        self.open_streams = Gauge(
            "headway_gateway_open_streams", "Event streams open now.", registry=registry
        )
        self.queue_up = Gauge(
            "headway_queue_up", "Whether the queue answered the last scrape.", registry=registry
        )
        self.queued = Gauge(
            "headway_queue_depth", "Jobs that wait, by band.", ("model", "priority"), registry=registry
        )
        self.running = Gauge(
            "headway_queue_running", "Jobs that workers hold.", ("model",), registry=registry
        )
        self.dead_letters = Gauge(
            "headway_queue_dead_letters", "Dead letters kept.", ("model",), registry=registry
        )
        self.workers = Gauge(
            "headway_workers", "Live workers by state.", ("model", "state"), registry=registry
        )

    def tenant(self, name: str) -> str:
        """The tenant's label value: its name for the first ``max_tenants``, then ``other``."""
        if name not in self._tenants:
            if len(self._tenants) >= self._max_tenants:
                return OTHER
            self._tenants.add(name)
        return name


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
