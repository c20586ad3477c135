"""What guesses add to a step of decodes: its time over that of the same step without any, by their number.

    ratio   1 ──── 1.02 ──── 1.05 ──────── 2.1        nearly free while a step waits for weights, dear once
            0       2         4             8         it does not: the best number lies at the bend

Kept for batches of like size, as it was timed; between two numbers that were timed it is read off the line,
and nothing is tried beyond twice what was. Times come as multiples of what the cost model foretells for the
step without guesses. Steps without any are timed, too, so that what it is off by, as it is on a machine whose
speed changes, is the same above and below the line.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

FIRST_PRICE: Final = 1 / 16
"""Of a guess, in plain steps of one decode, before any was timed: about what was seen on a CPU."""
SHARE: Final = 1 / 8
"""Weight of the newest step in a ratio."""
MOST_SURPRISE: Final = 1.5
"""A step further off, up or down, counts as if off by this: somebody else had the machine."""
FIRST_TRIAL: Final = 2


class GuessPrices:
    """The ratios for batches of one size."""

    def __init__(self, decodes: int) -> None:
        self._first_price = min(FIRST_PRICE, 0.5 / decodes)
        self._guesses = [0]
        """Numbers that were timed, sorted."""
        self._times = {0: 1.0}
        """Of each, in what was foretold without guesses."""

    @property
    def most(self) -> int:
        """How many guesses may be tried."""
        return max(FIRST_TRIAL, 2 * self._guesses[-1])

    @property
    def plain_time(self) -> float:
        """What steps without guesses took, in what was foretold."""
        return self._times[0]

    def is_timed(self, guesses: int) -> bool:
        """Whether a step with so many was."""
        return guesses in self._times

    def observe(self, guesses: int, time: float) -> None:
        """A step with so many took so many times what was foretold without any."""
        before = self._time(guesses)
        if guesses not in self._times:
            insort(self._guesses, guesses)
            self._times[guesses] = min(MOST_SURPRISE * before, time)
            return
        surprise = min(MOST_SURPRISE, max(1.0 / MOST_SURPRISE, time / before))
        self._times[guesses] = before * (1.0 + SHARE * (surprise - 1.0))

    def ratio(self, guesses: int) -> float:
        """The time of a step with so many over that without."""
        return self._time(guesses) / self._times[0]

    def _time(self, guesses: int) -> float:
        known = self._times.get(guesses)
        if known is not None:
            return known
        place = bisect_left(self._guesses, guesses)
        low = self._guesses[place - 1]
        if place < len(self._guesses):
            slope = self._slope(place)
        elif place > 1:
            slope = max(0.0, self._slope(place - 1))
        else:
            slope = self._first_price * self._times[0]
        return self._times[low] + slope * (guesses - low)

    def _slope(self, place: int) -> float:
        """Between the number timed at ``place`` and the one before it."""
        low, high = self._guesses[place - 1], self._guesses[place]
        return (self._times[high] - self._times[low]) / (high - low)


def size_class(decodes: int) -> int:
    """Batches alike: the largest size of 1, 2, 3, 4, 6, 8, 12, 16, 24 … that is not above ``decodes``."""
    power = 1 << (decodes.bit_length() - 1)
    return power + power // 2 if decodes >= power + power // 2 and power > 1 else power
