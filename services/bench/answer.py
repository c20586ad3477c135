"""One request of a benchmark: when it should have been sent, when it was, and what came back when.

All times are seconds on one clock, counted from the start of the point.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from headway.services.traffic import Demand

MOST_ERROR_LETTERS: Final = 300
"""Of a server's words that are kept as an example."""


class Outcome(StrEnum):
    """How a request ended."""

    FINISHED = "finished"
    """With a finish reason of a whole answer: stop or length."""
    REFUSED = "refused"
    """With a status other than 200."""
    FAILED = "failed"
    """With an error in its stream, or a finish reason that is no whole answer."""
    BROKEN = "broken"
    """The stream ended without a word, or no connection was made."""
    CANCELLED = "cancelled"
    """By this client, as it was asked to."""
    UNFINISHED = "unfinished"
    """It still ran when the time to wait for it was over."""
    UNSENT = "unsent"
    """As many as may be were open."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One request before it is sent."""

    number: int
    seconds: float
    """When it should be sent."""
    demand: Demand
    cancel_after: int | None = None
    """The client goes away after so many events with text; None: it stays."""
    is_slow: bool = False
    """Its reader reads slowly."""


@dataclass(slots=True)
class Answer:
    """What became of one request."""

    planned: Planned
    sent: float | None = None
    """When the client began to send it: what is late is the client's own fault until here."""
    connected: float | None = None
    times: array[float] = field(default_factory=lambda: array("d"))
    """When each event with text came."""
    counts: array[int] = field(default_factory=lambda: array("l"))
    """Tokens of each event where the server tells; else empty, and each is taken for one."""
    ended: float | None = None
    outcome: Outcome | None = None
    status: int = 0
    """HTTP's; 0: none came."""
    error: str = ""
    finish_reason: str = ""
    job_id: str = ""
    told_prompt_tokens: int | None = None
    told_answer_tokens: int | None = None
    told_cached_tokens: int | None = None

    @property
    def tokens(self) -> int:
        """Of the answer: as the server tells, else as the events count."""
        if self.told_answer_tokens is not None:
            return self.told_answer_tokens
        return sum(self.counts) if self.counts else len(self.times)

    @property
    def ttft_seconds(self) -> float | None:
        """From when it should have been sent: a client that is late makes nobody look fast."""
        return self.times[0] - self.planned.seconds if self.times else None

    @property
    def tpot_seconds(self) -> float | None:
        """Mean time for each token after the first event; None where there is none.

        Tokens that came with the first event took no time after it.
        """
        later = self.tokens - (self.counts[0] if self.counts else 1)
        if len(self.times) < 2 or later < 1:
            return None
        return (self.times[-1] - self.times[0]) / later

    @property
    def e2e_seconds(self) -> float | None:
        """To the end of a whole answer."""
        if self.outcome is not Outcome.FINISHED or self.ended is None:
            return None
        return self.ended - self.planned.seconds

    @property
    def late_seconds(self) -> float:
        """How late the client itself was."""
        return 0.0 if self.sent is None else self.sent - self.planned.seconds

    def end(self, outcome: Outcome, at: float, error: str = "") -> None:
        """Say how it ended; the first word counts."""
        if self.outcome is None:
            self.outcome, self.ended, self.error = outcome, at, error[:MOST_ERROR_LETTERS]

    def tokens_between(self, start: float, end: float) -> float:
        """Tokens that came in ``[start, end)``: the answer's, spread evenly over its events."""
        if not self.times:
            return 0.0
        if self.counts:
            pairs = zip(self.times, self.counts, strict=True)
            return float(sum(count for time, count in pairs if start <= time < end))
        inside = sum(start <= time < end for time in self.times)
        return inside * self.tokens / len(self.times)
