"""Percentiles, in one definition for all figures: of clients, of simulations and of benchmarks."""

from __future__ import annotations

from collections.abc import Iterable


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest of the values that at least ``percent`` of them do not exceed (nearest rank).

    So it is always one that was measured. Raises ValueError for no values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("a percentile of nothing")
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]
