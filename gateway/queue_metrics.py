"""What the queue is like at a scrape: how much waits, for how long, of whom, and how evenly it is served.

Every gateway tells the same of it, so queries take ``max by (…)`` over gateways, never a sum.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from headway.gateway.fairness_window import FairnessWindow
from headway.gateway.model_directory import ModelDirectory
from headway.gateway.tenant_labels import OTHER, TenantLabels
from headway.queueing.backlog import TenantBacklog
from headway.queueing.messages import Priority
from headway.queueing.protocol import LaneDepth, Queue

TENANTS_SECONDS: Final = 10.0
"""How old the backlog of each tenant may be: it costs a few commands for every tenant that waits."""


class QueueMetrics:
    """Gauges of the whole fleet, read from the queue when somebody scrapes."""

    def __init__(
        self,
        registry: CollectorRegistry,
        tenants: TenantLabels,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._label_of = tenants
        self._clock = clock
        self._wall_clock = wall_clock
        self._windows: defaultdict[tuple[str, Priority], FairnessWindow] = defaultdict(FairnessWindow)
        self._tenants_read_at: float | None = None
        self.up = self._gauge("queue_up", "Whether the queue answered the last scrape.")
        self._fleet()
        self._of_tenants()

    def _fleet(self) -> None:
        self._queued = self._gauge("queue_depth", "Jobs that wait, by band.", "model", "priority")
        self._running = self._gauge("queue_running", "Jobs that workers hold.", "model")
        self._dead_letters = self._gauge("queue_dead_letters", "Dead letters kept.", "model")
        self._workers = self._gauge("workers", "Live workers by state.", "model", "state")
        told = "Estimated tokens, prompt and longest answer, of all that waits."
        self._tokens = self._gauge("queue_tokens", told, "model")
        told = "Tokens a second that the lane's workers have served at their best lately; 0: not known."
        self._rate = self._gauge("queue_tokens_per_second", told, "model")
        told = "Predicted wait of a job posted now; no sample while work waits and no rate is known."
        self._wait = self._gauge("queue_wait_seconds", told, "model")
        told = "Age of the oldest job that is its tenant's next; 0: nothing waits."
        self._oldest = self._gauge("queue_oldest_seconds", told, "model", "priority")

    def _of_tenants(self) -> None:
        whose = ("model", "priority", "tenant")
        self._backlog = self._gauge("tenant_backlog_jobs", "Jobs of a tenant that wait.", *whose)
        self._backlog_tokens = self._gauge("tenant_backlog_tokens", "Their estimated tokens.", *whose)
        told = "Service by weight that a tenant with waiting jobs had; the smallest goes next."
        self._virtual_time = self._gauge("tenant_virtual_time", told, *whose)
        told = (
            "Jain's index of service by weight over the tenants that waited through the last minute; 1: even."
        )
        self._jain = self._gauge("fairness_jain_index", told, "model", "priority")

    async def measure(self, queue: Queue, models: ModelDirectory) -> None:
        """Read the queue; raises QueueingError."""
        fleet = await models.fleet(fresh=True)
        self._workers.clear()
        for card in fleet.workers:
            self._workers.labels(card.model, card.state).inc()
        for model in fleet.served:
            self._tell_depth(model, await queue.depth(model))
        now = self._clock()
        if self._tenants_read_at is None or now - self._tenants_read_at >= TENANTS_SECONDS:
            self._tenants_read_at = now
            backlogs = {model: await queue.tenants(model) for model in fleet.served}
            for gauge in (self._backlog, self._backlog_tokens, self._virtual_time):
                gauge.clear()
            for model, waiting in backlogs.items():
                self._tell_tenants(model, waiting, now)

    def _tell_depth(self, model: str, depth: LaneDepth) -> None:
        for priority, jobs in depth.queued.items():
            self._queued.labels(model, priority.value).set(jobs)
        self._running.labels(model).set(depth.running)
        self._dead_letters.labels(model).set(depth.dead_letters)
        self._tokens.labels(model).set(depth.queued_tokens)
        self._rate.labels(model).set(depth.tokens_per_second)
        if depth.wait_seconds is not None or not depth.queued_tokens:
            self._wait.labels(model).set(depth.wait_seconds or 0.0)
        else:
            with contextlib.suppress(KeyError):  # older client libraries raise for one that is not there
                self._wait.remove(model)

    def _tell_tenants(self, model: str, waiting: Sequence[TenantBacklog], now: float) -> None:
        for priority in Priority:
            band = [backlog for backlog in waiting if backlog.priority is priority]
            created = [backlog.next_created_ms for backlog in band if backlog.next_created_ms]
            age = self._wall_clock() - min(created) / 1000 if created else 0.0
            self._oldest.labels(model, priority.value).set(max(0.0, age))
            times = {backlog.tenant: backlog.virtual_time for backlog in band}
            index = self._windows[model, priority].look(now, times)
            # Nobody is treated unevenly where nobody competes.
            self._jain.labels(model, priority.value).set(1.0 if index is None else index)
        for backlog in waiting:
            label = self._label_of(backlog.tenant)
            labels = (model, backlog.priority.value, label)
            self._backlog.labels(*labels).inc(backlog.jobs)
            self._backlog_tokens.labels(*labels).inc(backlog.tokens)
            if label != OTHER:  # many tenants have no common time
                self._virtual_time.labels(*labels).set(backlog.virtual_time)

    def _gauge(self, name: str, told: str, *labels: str) -> Gauge:
        return Gauge(f"headway_{name}", told, labels, registry=self._registry)
