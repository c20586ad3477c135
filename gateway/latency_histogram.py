"""Prometheus histograms for what happens with every token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class Buckets:
    """Counts values in buckets; written by one thread, read by whoever scrapes.

    The client library's own takes locks and walks its buckets, ten times the cost of this one.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """``bounds``: the largest value of each bucket, ascending; one more is for what is larger."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """The buckets, cumulative, as a scrape gets them."""
        bounds = (*map(str, map(float, self._bounds)), "+Inf")
        family.add_metric(
            labels,
            buckets=list(zip(bounds, accumulate(self._counts), strict=True)),
            sum_value=self._sum,
        )


class LatencyHistogram(Collector):
    """One histogram, mostly of seconds, whose labels never change."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Mapping[str, str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._buckets = Buckets(bounds)
        self.observe = self._buckets.observe
        """Count one value."""
        registry.register(self)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The one family."""
        family = HistogramMetricFamily(self._name, self._text, labels=tuple(self._labels))
        self._buckets.add_to(family, tuple(self._labels.values()))
        yield family


class LatencyHistograms(Collector):
    """The same under labels that come as they are met."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._text = text
        self._labels = tuple(labels)
        self._bounds = tuple(bounds)
        self._buckets: dict[tuple[str, ...], Buckets] = {}
        registry.register(self)

    def labels(self, *values: str) -> Buckets:
        """The histogram of these label values, in the order of ``labels``."""
        found = self._buckets.get(values)
        if found is None:
            found = self._buckets[values] = Buckets(self._bounds)
        return found

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The one family, empty at first."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, buckets in tuple(self._buckets.items()):
            buckets.add_to(family, values)
        yield family
