"""How long steps of decodes take by their rows, guesses among them: what so many guesses more would cost.

    T(rows, context) = line(rows, context) · bend(rows)

The line is fitted as all step times are. Alone it would not do: rows are nearly free while a step waits for
the weights and dear once it does not, and the best number of guesses lies just where that turns. So what the
line is off by is kept for each number of rows that was timed, and read off between them for the others.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

from headway.engine.cost_model import WARM_STEPS, StepModel, StepShape

BEND_SHARE: Final = 1 / 8
"""Weight of the newest step in the bend at its rows."""
MOST_SURPRISE: Final = 1.5
"""A step further off, up or down, counts as if off by this: somebody else had the machine."""


class VerifyCost:
    """Keeps the bends of a line that others fit."""

    def __init__(self, line: StepModel) -> None:
        self._line = line
        self._bends: dict[int, float] = {}
        self._timed: list[int] = []
        """Numbers of rows that were timed, sorted."""

    @property
    def is_known(self) -> bool:
        """Whether enough was timed to say anything."""
        return self._line.steps >= WARM_STEPS

    def is_timed(self, rows: int) -> bool:
        """Whether a step of so many rows was, since the line is known."""
        return rows in self._bends

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learn from a step that the line has learned from."""
        line = self._line.predict(shape)
        if not self.is_known or line <= 0.0:
            return
        rows = shape.new_tokens
        if rows not in self._bends:
            bend = self._bend(rows)
            insort(self._timed, rows)
            self._bends[rows] = bend
        surprise = seconds / (line * self._bends[rows])
        surprise = min(MOST_SURPRISE, max(1.0 / MOST_SURPRISE, surprise))
        self._bends[rows] *= 1.0 + BEND_SHARE * (surprise - 1.0)

    def predict(self, rows: int, context_tokens: int) -> float:
        """Seconds of a step; meaningless until ``is_known``."""
        return self._line.predict(StepShape(rows, context_tokens, 0.0)) * self._bend(rows)

    def _bend(self, rows: int) -> float:
        bends, timed = self._bends, self._timed
        if rows in bends or not timed:
            return bends.get(rows, 1.0)
        place = bisect_left(timed, rows)
        if place in {0, len(timed)}:
            return bends[timed[max(0, place - 1)]]
        low, high = timed[place - 1], timed[place]
        share = (rows - low) / (high - low)
        return (1.0 - share) * bends[low] + share * bends[high]
