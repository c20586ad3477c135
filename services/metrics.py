"""What a worker measures, in Prometheus' terms. Latencies are seconds, counted from the queue's side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from headway.engine.timeline import Timeline
from headway.engine.values import EngineLoad, FinishReason, Objective
from headway.gateway.latency_histogram import LatencyHistogram
from headway.gateway.tenant_labels import TenantLabels
from headway.queueing.events import EndReason
from headway.services.claimed_job import ClaimedJob
from headway.services.job_metrics import JobMetrics
from headway.services.journeys import Journey, Journeys
from headway.services.scheduler_metrics import SchedulerMetrics
from headway.services.step_metrics import StepMetrics
from headway.services.vllm_names import VllmNames

STEP_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
LATENCY_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
COMPUTATION: Final = ("kernels", "threads", "weights")
"""Labels that tell what computes, in words."""


class WorkerMetrics:
    """One worker's numbers in a registry of their own, so that several workers fit in one process.

    ``timeline``: the engine's. ``objectives``: by class, as the engine's limits have them. ``most_tenants``:
    with a label value of their own.
    """

    def __init__(
        self,
        worker_id: str,
        model: str,
        *,
        timeline: Timeline | None = None,
        objectives: Sequence[Objective] = (),
        most_tenants: int = 50,
    ) -> None:
        self.registry = CollectorRegistry()
        tenants = TenantLabels(most_tenants)
        self.steps = StepMetrics(timeline or Timeline(), model, self.registry, tenants)
        self.jobs = JobMetrics(model, self.registry, tenants, objectives=objectives)
        self._sums = SchedulerMetrics(model, self.registry)
        self._journeys = Journeys()
        ProcessCollector(registry=self.registry)
        self._vllm = CollectorRegistry()
        self._vllm.register(VllmNames(self.registry, model))
        self._labels = {"model": model}
        self._finished = self._counter("requests", "Jobs ended here, by terminal reason", "reason")
        for reason in FinishReason:  # present from the start, so that a rate over a first error is not lost
            self._finished.labels(**self._labels, reason=reason.value)
        self._claimed = self._plain_counter("jobs_claimed", "Jobs claimed")
        self._redelivered = self._plain_counter("jobs_redelivered", "Claims whose earlier owner had died")
        self._resumed = self._plain_counter(
            "jobs_resumed", "Jobs that went on from tokens of an earlier owner"
        )
        self._handed_back = self._plain_counter("jobs_handed_back", "Jobs released unfinished by a drain")
        self._lost = self._plain_counter("claims_lost", "Claims that another worker took over")
        self._retries = self._plain_counter("publish_retries", "Writes to the queue that had to be repeated")
        self._suppressed = self._plain_counter(
            "suppressed_tokens", "Tokens kept from readers, since another worker had taken their job over"
        )
        self._lag = LatencyHistogram(
            "headway_stream_lag_seconds",
            "From the engine to the queue, of the oldest token of a job's write",
            self._labels,
            STEP_BUCKETS,
            self.registry,
        )
        self._tokens = self._counter("tokens", "Tokens by kind: prompt, completion, recomputed", "kind")
        self._completion_tokens = self._tokens.labels(**self._labels, kind="completion")  # looked up once
        self.completion_tokens = 0
        """Tokens published since the start."""
        self._told_completion_tokens = 0
        self._in_flight = self._gauge("jobs_in_flight", "Jobs claimed and not yet ended")
        self._running = self._gauge("requests_running", "Requests in the batch")
        self._waiting = self._gauge("requests_waiting", "Requests in the engine that have no blocks yet")
        self._held = self._gauge(
            "requests_held", "Requests paused: the queue is behind, or batch jobs stand back"
        )
        self._kv_total = self._gauge("kv_blocks_total", "KV blocks in the pool")
        self._kv_used = self._gauge("kv_blocks_used", "KV blocks in use")
        self._kv_ratio = self._gauge("kv_used_ratio", "KV blocks in use, as a part of the pool")
        self._step_age = self._gauge("step_age_seconds", "How long the running step has been running")
        self._step = self._histogram("step_seconds", "Time of one engine step", STEP_BUCKETS)
        self._publish = self._histogram("publish_seconds", "Time of one write to the queue", STEP_BUCKETS)
        self._ttft = self._histogram(
            "ttft_seconds", "Acceptance to the first token in the queue", LATENCY_BUCKETS
        )
        self._itl = LatencyHistogram(
            "headway_itl_seconds",
            "Time per token between two writes of a job",
            self._labels,
            STEP_BUCKETS,
            self.registry,
        )
        self._end_to_end = self._histogram("e2e_seconds", "Acceptance to the terminal event", LATENCY_BUCKETS)
        self._engine_seconds = Gauge(
            "headway_engine_seconds",
            "Time of the engine's thread since the start, by part of a step",
            ("model", "part"),
            registry=self.registry,
        )
        self._engine_steps = self._gauge("engine_steps", "Steps since the start")
        self._engine_tokens = self._gauge("engine_tokens", "Tokens sampled since the start")
        self._loop_cpu = self._gauge("loop_cpu_seconds", "CPU time of the I/O loop since the start")
        self._scheduler: dict[str, Gauge] = {}
        """The scheduler's own figures by name, as the first load brings them."""
        self._computation = Gauge(
            "headway_computation",
            "1, with what computes: kernels, threads, and where the weights are",
            ("model", *COMPUTATION),
            registry=self.registry,
        )
        info = Gauge("headway_worker", "The worker, by id", ("model", "worker"), registry=self.registry)
        info.labels(model=model, worker=worker_id).set(1)

    def render(self) -> bytes:
        """The text that a scrape gets."""
        self._completion_tokens.inc(self.completion_tokens - self._told_completion_tokens)
        self._told_completion_tokens = self.completion_tokens
        self.look()
        return generate_latest(self.registry) + generate_latest(self._vllm)

    def look(self) -> None:
        """Take in the engine's timeline; once a second is often enough."""
        self._journeys.follow(self.steps.look())

    def observe_load(self, load: EngineLoad, *, jobs: int, step_age_seconds: float) -> None:
        """Set the gauges; called when somebody looks."""
        self._in_flight.set(jobs)
        self._running.set(load.running)
        self._waiting.set(load.waiting)
        self._held.set(load.held)
        self._kv_total.set(load.kv_blocks_total)
        self._kv_used.set(load.kv_blocks_used)
        self._kv_ratio.set(load.kv_blocks_used / load.kv_blocks_total if load.kv_blocks_total else 0.0)
        self._sums.show(load.extra)
        self._step_age.set(step_age_seconds)
        for name, value in load.extra.items():
            if name not in self._scheduler:
                text = f"The scheduler's {name.replace('_', ' ')}"
                self._scheduler[name] = self._gauge(f"scheduler_{name}", text)
            self._scheduler[name].set(value)

    def observe_computation(self, computation: Mapping[str, str]) -> None:
        """What computes, in words for each of COMPUTATION."""
        self._computation.labels(**self._labels, **computation).set(1)

    def observe_profile(
        self,
        seconds: Mapping[str, float],
        *,
        steps: int,
        tokens: int,
        idle_seconds: float,
        loop_cpu_seconds: float,
    ) -> None:
        """Set where the time went since the start; called when somebody looks."""
        for part, spent in (*seconds.items(), ("idle", idle_seconds)):
            self._engine_seconds.labels(**self._labels, part=part).set(spent)
        self._engine_steps.set(steps)
        self._engine_tokens.set(tokens)
        self._loop_cpu.set(loop_cpu_seconds)

    def claimed(self, *, attempts: int) -> None:
        """A job was claimed."""
        self._claimed.inc()
        if attempts > 0:
            self._redelivered.inc()

    def started(self, *, prompt_tokens: int, resumed_tokens: int) -> None:
        """A job's requests went into the engine; an earlier owner's work on it has to be computed again."""
        self._tokens.labels(**self._labels, kind="prompt").inc(prompt_tokens)
        if resumed_tokens:
            self._resumed.inc()
            self._tokens.labels(**self._labels, kind="recomputed").inc(prompt_tokens + resumed_tokens)
            self._sums.resumed_tokens += prompt_tokens + resumed_tokens

    def stepped(self, seconds: float) -> None:
        """The engine made a step; called from its thread."""
        self._step.observe(seconds)

    def published(self, seconds: float) -> None:
        """A write to the queue was confirmed."""
        self._publish.observe(seconds)

    def publish_failed(self) -> None:
        """A write to the queue has to be repeated."""
        self._retries.inc()

    def wrote_tokens(self, tokens: int) -> None:
        """``tokens`` of one job are in the queue."""
        self.completion_tokens += tokens

    def wrote_first_tokens(self, tokens: int, *, seconds: float) -> None:
        """The first tokens of a job are in the queue, ``seconds`` after it was accepted."""
        self.completion_tokens += tokens
        self._ttft.observe(seconds)

    def wrote_next_tokens(self, tokens: int, *, seconds: float) -> None:
        """``tokens`` of one job are in the queue, ``seconds`` after the ones before them."""
        self.completion_tokens += tokens
        self._itl.observe(seconds / tokens)

    def wrote_after(self, seconds: float) -> None:
        """A job's tokens are in the queue, the oldest of them so long after the engine made it."""
        self._lag.observe(seconds)

    def suppressed(self, tokens: int) -> None:
        """``tokens`` of a job were not written, since it is another worker's."""
        self._suppressed.inc(tokens)

    def finished(self, reason: EndReason, *, seconds: float) -> None:
        """A job's terminal event is in the queue."""
        self._finished.labels(**self._labels, reason=reason.value).inc()
        self._end_to_end.observe(seconds)

    def journeys_of(self, job: ClaimedJob) -> tuple[Journey, ...]:
        """How the requests of a job that leaves went here; told once."""
        self.look()
        specs = () if job.prepared is None else job.prepared.specs
        return self._journeys.take(spec.request_id for spec in specs)

    def handed_back(self) -> None:
        """A job was released unfinished."""
        self._handed_back.inc()

    def lost(self) -> None:
        """A claim was lost to another worker."""
        self._lost.inc()

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(f"headway_{name}", text, ("model", label), registry=self.registry)

    def _plain_counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"headway_{name}", text, ("model",), registry=self.registry)
        return counter.labels(**self._labels)

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(f"headway_{name}", text, ("model",), registry=self.registry)
        return gauge.labels(**self._labels)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"headway_{name}", text, ("model",), registry=self.registry, buckets=buckets)
        return histogram.labels(**self._labels)
