"""The scheduler's own sums as counters: preemptions and what they cost, the prefix cache, guesses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

MODES: Final = ("swap", "recompute")
_BY_MODE: Final = {
    "headway_preemptions": (
        "preemptions_{}",
        "Requests that gave way to others, by how they keep their place.",
    ),
    "headway_preemption_predicted_seconds": (
        "{}_predicted_seconds",
        "What giving way was predicted to cost, of those that came back.",
    ),
    "headway_preemption_real_seconds": ("{}_real_seconds", "What it did cost them."),
}
_PLAIN: Final = {
    "headway_preemptions_deferred": (
        "preemptions_deferred",
        "Times that waiting a step for room was cheaper than to preempt.",
    ),
    "headway_prefix_cache_lookup_tokens": (
        "prefix_lookup_tokens",
        "Known tokens of requests at their first start.",
    ),
    "headway_prefix_cache_hit_tokens": ("prefix_hit_tokens", "Of those, what the prefix cache held."),
    "headway_draft_tokens": ("draft_tokens", "Guessed tokens that were computed."),
    "headway_draft_tokens_right": ("draft_tokens_right", "Of those, the right ones."),
    "headway_discarded_tokens": ("discarded_tokens", "Tokens computed behind an answer's end."),
}


class SchedulerMetrics(Collector):
    """Tells the sums of the last load that it was shown."""

    def __init__(self, model: str, registry: CollectorRegistry) -> None:
        self._model = model
        self._sums: Mapping[str, float] = {}
        self.resumed_tokens = 0
        """Tokens computed again since their job's earlier owner was lost or drained."""
        registry.register(self)

    def show(self, sums: Mapping[str, float]) -> None:
        """``EngineLoad.extra`` as of now."""
        self._sums = sums

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Every counter, at 0 from the start."""
        for name, (source, told) in _BY_MODE.items():
            family = CounterMetricFamily(name, told, labels=("model", "mode"))
            for mode in MODES:
                family.add_metric((self._model, mode), self._sums.get(source.format(mode), 0.0))
            yield family
        for name, (source, told) in _PLAIN.items():
            family = CounterMetricFamily(name, told, labels=("model",))
            family.add_metric((self._model,), self._sums.get(source, 0.0))
            yield family
        told = (
            "Tokens whose computation was lost and done again: after a preemption, or at a job's next owner."
        )
        family = CounterMetricFamily("headway_recomputed_tokens", told, labels=("model", "cause"))
        # What the prefix cache still held when they came back was not computed again.
        lost = self._sums.get("preemption_lost_tokens", 0.0) - self._sums.get(
            "preemption_regained_tokens", 0.0
        )
        family.add_metric((self._model, "preemption"), max(0.0, lost))
        family.add_metric((self._model, "resume"), float(self.resumed_tokens))
        yield family
