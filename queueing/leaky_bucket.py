"""A rate as a GCRA in the form of a leaky bucket (ITU-T I.371), as lua/buckets.lua has it, for MemoryQueue.

Requests or tokens fill the bucket, ``UNITS`` each; a limit of n a minute drains n units per microsecond. A
bucket holds one minute's worth: that much may come at once, the rest at the rate. All numbers are whole, so
that nothing is rounded.

What begins on an empty bucket counts as one burst for ``BURST_MICROSECONDS``: nothing drains before, all of
it afterwards. So a limit of 50 admits exactly 50 of 200 parallel submits, also when those take seconds
to arrive; in the long run nothing changes, since it is only paid out later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNITS: Final = 60_000_000
BURST_MICROSECONDS: Final = 10_000_000
FULLEST: Final = 2**53 - 1
"""Whatever a job may owe: the largest level that a server writes whole."""


@dataclass(slots=True)
class LeakyBucket:
    """One tenant's bucket; all times are microseconds of one clock."""

    level: int = 0
    drained_at: int = 0
    held_until: int = 0
    rate: int = 0
    """The limit per minute; 0: none, and the bucket stays empty."""

    def drain(self, now: int) -> None:
        """Let out what has drained by now."""
        if self.drained_at > now or self.held_until > now + BURST_MICROSECONDS:
            self.drained_at = self.held_until = now  # the clock was set back
        if now >= self.held_until:
            self.level = max(0, self.level - (now - self.drained_at) * self.rate)
            self.drained_at = now

    def set_rate(self, limit: int | None, now: int) -> None:
        """Drain at another rate from now on."""
        self.drain(now)
        self.rate = limit or 0
        if limit is None:
            self.level = 0

    def fill(self, amount: int, now: int) -> None:
        """Count something as used; a negative amount is given back."""
        if self.rate == 0:
            return
        self.drain(now)
        if self.level == 0 and amount > 0:
            self.drained_at, self.held_until = now, now + BURST_MICROSECONDS
        self.level = min(max(0, self.level + amount * UNITS), FULLEST)

    def wait_microseconds(self, amount: int, now: int) -> int:
        """How long until ``amount`` more fits, at most a whole bucket; 0: it does now. Drain first."""
        return self._until((self.rate - min(amount, self.rate)) * UNITS, now)

    def left(self) -> int:
        """How much more fits now. Drain first."""
        return max(0, (self.rate * UNITS - self.level) // UNITS)

    def reset_microseconds(self, now: int) -> int:
        """How long until it is empty. Drain first."""
        return self._until(0, now)

    def _until(self, level: int, now: int) -> int:
        over = self.level - level
        if over <= 0:
            return 0
        return max(self.drained_at - (-over // self.rate), self.held_until) - now
