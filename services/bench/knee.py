"""Where a server's knee is: the highest rate at which enough requests still meet their limits (DistServe)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

CLOSE_ENOUGH: Final = 1.08
"""Of the lowest rate that failed over the highest that was served: below it the search ends."""


@dataclass(frozen=True, slots=True)
class Knee:
    """Between which rates it lies."""

    served: float | None
    """The highest rate at which the goal was met; None: at none that was tried."""
    failed: float | None
    """The lowest rate above it at which the goal was missed; None: at none that was tried."""
    goal: float

    def shown(self) -> dict[str, Any]:
        """For the result."""
        return {"attainment_goal": self.goal, "served_rate": self.served, "failed_rate": self.failed}


def find_knee(attainments: Mapping[float, float | None], goal: float) -> Knee:
    """The knee by what was measured: ``attainments`` by rate; None (nothing came) meets no goal.

    A rate above a failed one counts for nothing, however lucky it was.
    """
    served = None
    for rate in sorted(attainments):
        attained = attainments[rate]
        if attained is None or attained < goal:
            return Knee(served, rate, goal)
        served = rate
    return Knee(served, None, goal)


def is_believed(point: Mapping[str, Any]) -> bool:
    """Whether a point's client kept up: else its figures are not the server's."""
    return not point["client"]["complaints"]


def knee_of(points: Iterable[Mapping[str, Any]], goal: float) -> Knee | None:
    """The knee by the points that can be believed; None where there is none of them."""
    attainments = {point["rate"]: point["attainment"] for point in points if is_believed(point)}
    return find_knee(attainments, goal) if attainments else None


def next_rate(knee: Knee, first: float) -> float | None:
    """Which rate to try next; None: the knee is known closely enough.

    Doubles until a rate fails (halves while the first does), then halves the ratio between the two.
    """
    if knee.failed is None:
        return first if knee.served is None else 2.0 * knee.served
    if knee.served is None:
        return knee.failed / 2.0
    if knee.failed / knee.served <= CLOSE_ENOUGH:
        return None
    return float(f"{math.sqrt(knee.served * knee.failed):.3g}")
