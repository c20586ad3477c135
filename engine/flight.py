"""A plan under way, and what came of it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from headway.engine.cost_model import StepShape
from headway.engine.request import Request
from headway.engine.values import RequestKey, Sampled


@dataclass(slots=True)
class Flight:
    """What has to be remembered of a plan until its result is booked."""

    requests: list[Request]
    """Of its chunks, in order."""
    starts: list[int]
    """The same: from where on each computes."""
    tokens: array[int]
    """The same: how many it computes; once it has landed without wrong guesses."""
    samples: bytes
    """The same: 1 where that reaches the last known token."""
    drafts: bytes
    """The same: how many of them are guesses."""
    shape: StepShape
    started_at: float
    """When it was planned, or the one before it landed."""
    predicted_seconds: float
    releases: int
    """How many releases the roster had counted: what this plan tells the runner to forget is among them."""
    landed_at: float = 0.0
    sampled: dict[RequestKey, list[Sampled]] = field(default_factory=dict[RequestKey, list[Sampled]])
    """What came of it, once it has landed."""

    def settle(self, sampled: Iterable[Sampled], *, is_overtaken: bool) -> None:
        """Take the tokens in and forget wrong guesses, of which nothing was sampled.

        ``is_overtaken``: a later plan was made already. It may have been executed, with other guesses in the
        same slots, so of this plan's none counts.
        """
        for entry in sampled:
            entries = self.sampled.setdefault(entry.key, [])
            if not (entries and is_overtaken):
                entries.append(entry)
        if any(self.drafts):
            for place, (request, drafts) in enumerate(zip(self.requests, self.drafts, strict=True)):
                right = len(self.sampled.get(request.key, ())) - 1 if drafts else 0
                self.tokens[place] += max(0, right) - drafts
