"""What a process of the batch service counts, in Prometheus' terms. May be used by several threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from headway.queueing.batch import EndState, Tally
from headway.services.batch.retention import Swept
from headway.services.batch.webhook_delivery import Try

ERRANDS: Final = ("tidy", "books")


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """What every process of the service tells alike, since it is the queue's."""

    open_batches: int
    oldest_seconds: float
    """Since the oldest of them was accepted; 0: there is none."""
    due_messages: int
    """Of webhooks: their time has come."""
    waiting_messages: int
    """They failed before, and their next try is later."""


class BatchMetrics(Collector):
    """One process's numbers, in a registry of their own. All series are there from the start, at 0."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.fleet: FleetFigures | None = None
        """As they were at the last look; None: nobody could look."""
        self._posted = self._counter("batch_lines_posted", "Lines of batches taken on here.")
        self._lines = self._counter("batch_lines", "Lines whose results were committed here.", "outcome")
        self._ended = self._counter("batches_ended", "Batches that came to their end here.", "state")
        self._turns = self._counter("batch_turns", "Turns at batches that are over, by how.", "outcome")
        self._tries = self._counter("webhook_tries", "Tries to deliver a webhook's message.", "outcome")
        self._errands = self._counter(
            "batch_errands", "Errands by the clock that are over.", "kind", "outcome"
        )
        self._swept = self._counter("batch_removed", "What retention removed.", "kind")
        self._done_at = Gauge(
            "headway_batch_errand_done_timestamp_seconds",
            "When an errand was last done here.",
            ("kind",),
            registry=self.registry,
        )
        self._appear()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def render(self) -> bytes:
        """The text that a scrape gets."""
        return generate_latest(self.registry)

    def posted(self) -> None:
        """A line was taken on: its jobs are in the queue, or it is found to be none."""
        self._posted.inc()

    def committed(self, tally: Tally) -> None:
        """The results of a part count."""
        self._lines.labels(outcome="completed").inc(tally.completed)
        self._lines.labels(outcome="failed").inc(tally.failed)

    def ended(self, state: EndState) -> None:
        """A batch came to its end."""
        self._ended.labels(state=state).inc()

    def turn(self, *, is_broken: bool) -> None:
        """A turn is over. ``is_broken``: the queue or the files were away."""
        self._turns.labels(outcome="broken" if is_broken else "over").inc()

    def tried(self, outcome: Try) -> None:
        """A webhook's message was tried."""
        self._tries.labels(outcome=outcome).inc()

    def errand(self, kind: str, *, is_done: bool, now_unix: float) -> None:
        """An errand is over."""
        self._errands.labels(kind=kind, outcome="done" if is_done else "failed").inc()
        if is_done:
            self._done_at.labels(kind=kind).set(now_unix)

    def swept(self, swept: Swept) -> None:
        """Retention removed this."""
        for kind in Swept.kinds():
            self._swept.labels(kind=kind).inc(getattr(swept, kind))

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The fleet's figures; no sample while nobody can look."""
        told = self.fleet
        yield _gauge(
            "open_batches", "Batches that have not ended.", None if told is None else told.open_batches
        )
        yield _gauge(
            "batch_oldest_seconds",
            "Age of the oldest batch that has not ended; 0: there is none.",
            None if told is None else told.oldest_seconds,
        )
        messages = GaugeMetricFamily(
            "headway_webhook_messages",
            "Messages on their way: due now, or waiting for their next try.",
            labels=("state",),
        )
        if told is not None:
            messages.add_metric(("due",), told.due_messages)
            messages.add_metric(("waiting",), told.waiting_messages)
        yield messages

    def _appear(self) -> None:
        """So that a rate over a first failure is not lost."""
        self.committed(Tally())
        self.swept(Swept())
        for state in get_args(EndState):
            self._ended.labels(state=state)
        for outcome in ("over", "broken"):
            self._turns.labels(outcome=outcome)
        for outcome in get_args(Try):
            self._tries.labels(outcome=outcome)
        for kind in ERRANDS:
            for outcome in ("done", "failed"):
                self._errands.labels(kind=kind, outcome=outcome)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"headway_{name}", text, labels, registry=self.registry)


def _gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"headway_{name}", text)
    if value is not None:
        family.add_metric((), value)
    return family
