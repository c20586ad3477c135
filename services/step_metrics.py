"""What steps tell of tenants and of the cost model, read from the engine's timeline beside its thread.

A step's tokens and time go to the tenants whose requests were in it, the time by tokens. It costs the step
nothing: the timeline is kept anyway, and whoever looks copies it.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as PrometheusCounter

from headway.engine.timeline import Happening, RequestEvent, StepEvent, Timeline
from headway.engine.values import RequestKey
from headway.gateway.latency_histogram import LatencyHistogram
from headway.gateway.tenant_labels import OTHER, TenantLabels

ERROR_BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 3.0)
"""Of a step's real time; over 0.3 on average the scheduler goes by token budgets."""
TOKEN_BUCKETS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


TRIES: Final = 3
Entry = TypeVar("Entry")


class StepMetrics:
    """Service by tenant, tokens per step, and how far predictions were off."""

    def __init__(
        self, timeline: Timeline, model: str, registry: CollectorRegistry, tenants: TenantLabels
    ) -> None:
        self._timeline = timeline
        self._model = model
        self._label_of = tenants
        labels = {"model": model}
        told = "Tokens computed for a tenant: prompts, answers, and what was computed again."
        self._tokens = PrometheusCounter(
            "headway_tenant_service_tokens", told, ("model", "tenant"), registry=registry
        )
        told = "Time of steps by the tenants in them, in proportion to their tokens."
        self._seconds = PrometheusCounter(
            "headway_tenant_service_seconds", told, ("model", "tenant"), registry=registry
        )
        told = "Share of a tenant by weight; 1 where no other was set."
        self._weight = Gauge("headway_tenant_weight", told, ("model", "tenant"), registry=registry)
        told = "How far a step's predicted time was off, as a part of its real time."
        self._error = LatencyHistogram(
            "headway_step_prediction_error_ratio", told, labels, ERROR_BUCKETS, registry
        )
        self.step_tokens = LatencyHistogram(
            "headway_step_tokens", "Tokens that a step computed.", labels, TOKEN_BUCKETS, registry
        )
        self._weights: dict[str, float] = {}
        self._tenants: dict[RequestKey, str] = {}
        self._ended: list[RequestKey] = []
        self._last_step = -1
        self._last_event: RequestEvent | None = None

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Tenants have these weights from now on."""
        self._weights.update(weights)
        for tenant, weight in weights.items():
            if (label := self._label_of(tenant)) != OTHER:
                self._weight.labels(self._model, label).set(weight)

    def look(self) -> tuple[RequestEvent, ...]:
        """Count the steps since the last look; returns the events since then, oldest first.

        A look a second misses nothing: the timeline holds 2,048 steps.
        """
        events = self._new_events()
        self._tenants.update((event.key, event.tenant) for event in events)
        tokens: Counter[str] = Counter()
        seconds: defaultdict[str, float] = defaultdict(float)
        in_step: Counter[str] = Counter()
        last: StepEvent | None = None
        for step in self._new_steps():
            self._observe(step)
            # Most steps are like the one before: a token for each of the same requests.
            if last is None or step.keys != last.keys or step.tokens != last.tokens:
                in_step = self._by_tenant(step)
                last = step
            tokens.update(in_step)
            whole = sum(in_step.values())
            for tenant, count in in_step.items():
                seconds[tenant] += step.real_seconds * count / whole
        for tenant, count in tokens.items():
            label = self._label(tenant)
            self._tokens.labels(self._model, label).inc(count)
            self._seconds.labels(self._model, label).inc(seconds[tenant])
        for key in self._ended:  # a step that ran while its request ended was in this look at the latest
            self._tenants.pop(key, None)
        self._ended = [event.key for event in events if event.happening is Happening.FINISHED]
        return events

    def _by_tenant(self, step: StepEvent) -> Counter[str]:
        tokens: Counter[str] = Counter()
        for key, count in zip(step.keys, step.tokens, strict=True):
            tokens[self._tenants.get(key, OTHER)] += count
        return tokens

    def _observe(self, step: StepEvent) -> None:
        self.step_tokens.observe(sum(step.tokens))
        if step.predicted_seconds > 0.0 and step.real_seconds > 0.0:
            self._error.observe(abs(step.predicted_seconds - step.real_seconds) / step.real_seconds)

    def _label(self, tenant: str) -> str:
        label = self._label_of(tenant)
        if label != OTHER and tenant not in self._weights:
            self.weigh({tenant: 1.0})
        return label

    def _new_steps(self) -> list[StepEvent]:
        last = self._last_step
        steps = _newest(self._timeline.steps, lambda step: step.step <= last)
        if steps:
            self._last_step = steps[-1].step
        return steps

    def _new_events(self) -> tuple[RequestEvent, ...]:
        last = self._last_event
        events = _newest(self._timeline.events, lambda event: event is last)
        if events:
            self._last_event = events[-1]
        return tuple(events)


def _newest(ring: deque[Entry], is_old: Callable[[Entry], bool]) -> list[Entry]:
    """What came behind the first old entry, seen from the end; in the order that it came."""
    for _ in range(TRIES):
        try:
            return list(takewhile(lambda entry: not is_old(entry), reversed(ring)))[::-1]
        except RuntimeError:  # the engine's thread appended meanwhile
            continue
    copy = tuple(ring)  # in one go, but all of it
    return list(takewhile(lambda entry: not is_old(entry), reversed(copy)))[::-1]
