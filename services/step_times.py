"""How long a step takes on a machine that was measured: pieces of straight lines, and the machine's unrest.

    T = f(new tokens) + r·rows + c·Σ context + q·Σ m(p + m/2)

``f`` goes through measured knots: on a CPU a product of few rows costs what reading its weights costs, one
of many what its arithmetic costs, and there are steps between. Each step's time is multiplied by a draw from
what real steps took over the line, so that the tail of a distribution is predicted too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

from headway.services.hardware import Coefficients, StepWork


@dataclass(frozen=True, slots=True)
class StepLine:
    """The fitted line. ``knots``: (new tokens, seconds), ascending in both; the last slope goes on."""

    knots: tuple[tuple[float, float], ...]
    per_row: float
    per_context_token: float
    per_pair: float
    ratios: tuple[float, ...] = (1.0,)
    """What steps took over what the line says, sorted; as many in each part of the range as there were."""

    def __post_init__(self) -> None:
        ascending = all(a < c and b <= d for (a, b), (c, d) in pairwise(self.knots))
        prices = (self.per_row, self.per_context_token, self.per_pair)
        if len(self.knots) < 2 or not ascending or self.knots[0][1] <= 0.0:
            raise ValueError("two knots at least, each with more tokens and no less time than the one before")
        if min(prices) < 0.0 or not self.ratios or min(self.ratios) <= 0.0:
            raise ValueError("prices are 0 or more, ratios above 0")

    def seconds(self, work: StepWork) -> float:
        """The line's value: a step's time without the machine's unrest."""
        return (
            self.of_tokens(work.new_tokens)
            + self.per_row * work.rows
            + self.per_context_token * work.context_tokens
            + self.per_pair * work.pairs
        )

    def of_tokens(self, tokens: float) -> float:
        """The part that depends on the new tokens alone."""
        places = [place for place, _ in self.knots]
        right = min(max(bisect_right(places, tokens), 1), len(places) - 1)
        (x, low), (y, high) = self.knots[right - 1 : right + 1]
        return low + (high - low) * (max(tokens, places[0]) - x) / (y - x)

    @property
    def coefficients(self) -> Coefficients:
        """A straight line for prices: from the first knot to the last."""
        (x, low), *_, (y, high) = self.knots
        slope = (high - low) / (y - x)
        return Coefficients(
            max(0.0, low - slope * x), slope + self.per_row / y, self.per_context_token, self.per_pair
        )

    def to_json(self) -> dict[str, Any]:
        """As values of JSON."""
        return {
            "knots": [list(knot) for knot in self.knots],
            "per_row": self.per_row,
            "per_context_token": self.per_context_token,
            "per_pair": self.per_pair,
            "ratios": list(self.ratios),
        }

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> StepLine:
        """The opposite; raises KeyError, TypeError or ValueError for anything else."""
        return cls(
            tuple((float(tokens), float(seconds)) for tokens, seconds in read["knots"]),
            float(read["per_row"]),
            float(read["per_context_token"]),
            float(read["per_pair"]),
            tuple(float(ratio) for ratio in read["ratios"]),
        )


class MeasuredMachine:
    """A line with its unrest, drawn from a seed: the same seed and steps give the same times."""

    def __init__(self, line: StepLine, seed: int = 0) -> None:
        self.line = line
        self._random = Random(f"unrest {seed}")

    @property
    def coefficients(self) -> Coefficients:
        """Of the straight line."""
        return self.line.coefficients

    def seconds(self, work: StepWork) -> float:
        """Time of a step."""
        return self.line.seconds(work) * self._random.choice(self.line.ratios)


def grouped_means(values: Sequence[float], groups: int) -> tuple[float, ...]:
    """Means of equal parts of the sorted values: fewer numbers of the same mean."""
    ordered = sorted(values)
    groups = min(groups, len(ordered))
    bounds = [len(ordered) * place // groups for place in range(groups + 1)]
    return tuple(sum(ordered[a:b]) / (b - a) for a, b in pairwise(bounds))
