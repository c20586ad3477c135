"""A Prometheus histogram for what happens with every token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class LatencyHistogram(Collector):
    """Counts seconds in buckets; written by one thread, read by whoever scrapes.

    The client library's own takes locks and walks its buckets, ten times the cost of this one.
    """

    def __init__(
        self,
        name: str,
        text: str,
        labels: Mapping[str, str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        """``bounds``: the largest value of each bucket, ascending; one more is for what is larger."""
        self._name = name
        self._text = text
        self._labels = labels
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The buckets, cumulative, as a scrape gets them."""
        family = HistogramMetricFamily(self._name, self._text, labels=tuple(self._labels))
        bounds = (*map(str, map(float, self._bounds)), "+Inf")
        family.add_metric(
            tuple(self._labels.values()),
            buckets=list(zip(bounds, accumulate(self._counts), strict=True)),
            sum_value=self._sum,
        )
        yield family
