"""Finds the best of many candidates with few trials: successive halving on common random numbers.

Every candidate is tried on the same first replicate; the best third goes on to a second, the best third of
those to four, until a few are left, which get all. Two are compared on the same replicates only, so what
was lucky about a replicate was lucky for both (Jamieson & Talwalkar, arXiv 1502.07943).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

KEEP: Final = 3
"""One in so many goes on."""
FINALISTS: Final = 4
REPLICATES: Final = 8
"""Of the last ones."""
SAME: Final = 0.005
"""Goodputs nearer than this share of the best are equal: then the shorter wait decides."""
_STUDENT_95: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36)
"""Two-sided 95 % of Student's t for 1 to 7 degrees of freedom."""

CandidateT = TypeVar("CandidateT")


class Score(NamedTuple):
    """One trial: requests a second that met their limits, and how long the unlucky ones waited."""

    goodput: float
    ttft_p99: float


@dataclass(slots=True)
class Tried(Generic[CandidateT]):
    """A candidate with the scores of the replicates that it has had, in order."""

    candidate: CandidateT
    scores: list[Score] = field(default_factory=list[Score])

    @property
    def goodput(self) -> float:
        """The mean over its replicates."""
        return statistics.fmean(score.goodput for score in self.scores)

    @property
    def ttft_p99(self) -> float:
        """The mean over its replicates."""
        return statistics.fmean(score.ttft_p99 for score in self.scores)

    @property
    def margin(self) -> float:
        """Half of the 95 % interval of the mean goodput; infinite for a single replicate."""
        count = len(self.scores)
        if count < 2:
            return math.inf
        deviation = statistics.stdev(score.goodput for score in self.scores)
        return _STUDENT_95[min(count - 1, len(_STUDENT_95)) - 1] * deviation / math.sqrt(count)


def search(
    candidates: Iterable[CandidateT],
    trial: Callable[[CandidateT, int], Score],
    *,
    always: CandidateT | None = None,
    replicates: int = REPLICATES,
    show: Callable[[str], None] = lambda text: None,  # noqa: ARG005 -- for who wants no progress
) -> list[Tried[CandidateT]]:
    """The last ones, best first, each with all replicates. ``trial(candidate, replicate)`` gives a score.

    ``always``: one that stays to the end whatever it scores, to compare with. Raises ValueError for no
    candidates.
    """
    left = [Tried(candidate) for candidate in candidates]
    if not left:
        raise ValueError("nothing to choose among")
    count = 1
    while True:
        for place, tried in enumerate(left):
            while len(tried.scores) < count:
                tried.scores.append(trial(tried.candidate, len(tried.scores)))
            show(f"{place + 1} of {len(left)} settings on {count} of {replicates} loads")
        left = ranked(left)
        if count >= replicates:
            return left
        kept = left[: max(FINALISTS, math.ceil(len(left) / KEEP))]
        kept += [tried for tried in left[len(kept) :] if tried.candidate == always]
        left, count = kept, replicates if len(left) <= FINALISTS else min(2 * count, replicates)


def ranked(tried: Iterable[Tried[CandidateT]]) -> list[Tried[CandidateT]]:
    """By goodput; those as good as the best by their wait. Ties keep their order."""
    ordered = sorted(tried, key=lambda one: -one.goodput)
    least = ordered[0].goodput * (1 - SAME)
    as_good = [one for one in ordered if one.goodput >= least]
    return sorted(as_good, key=lambda one: one.ttft_p99) + ordered[len(as_good) :]
