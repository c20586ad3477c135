"""Where the engine's time goes, step by step, as sums since the start: for metrics and ``headway profile``.

step   [ plan ][ execute: products, head, attention, rest, sampling, around them ][ apply ][ text ]
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from headway.engine.values import StepResult


class Part(StrEnum):
    """What a step's time is spent on."""

    PRODUCTS = "products"
    """Matrix products of the layers."""
    HEAD = "head"
    """The product over the vocabulary."""
    ATTENTION = "attention"
    MODEL = "model"
    """The rest of the forward pass; all of it where the runner does not tell more."""
    SAMPLING = "sampling"
    RUNNER = "runner"
    """The rest of the runner: inputs packed, blocks copied."""
    SCHEDULING = "scheduling"
    DETOKENIZE = "detokenize"


PRODUCTS, HEAD, ATTENTION, MODEL, SAMPLING, RUNNER, SCHEDULING, DETOKENIZE = Part
"""Looked up once: in Python 3.11 each look at a member of an enum is a call, and a step has a dozen."""


class StepProfile:
    """Adds up laps of one thread; any thread may read.

    With look-ahead a part of the runner's time passes beside the planning: only the rest is counted.
    """

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._clock = clock
        self._at = 0.0
        self.steps = 0
        self.tokens = 0
        """Sampled."""
        self.seconds: dict[Part, float] = dict.fromkeys(Part, 0.0)

    def begin(self) -> None:
        """A lap begins."""
        self._at = self._clock()

    def lap(self, part: Part) -> None:
        """What passed since the last lap was this; the next one begins."""
        now = self._clock()
        self.seconds[part] += now - self._at
        self._at = now

    def computed(self, result: StepResult) -> None:
        """What passed since the last lap was the runner's; its result says more."""
        now = self._clock()
        waited, self._at = now - self._at, now
        self.steps += 1
        self.tokens += len(result.sampled)
        times, seconds = result.times, self.seconds
        if times is None:
            seconds[RUNNER] += waited
            return
        told = times.model + times.sampling
        share = min(1.0, waited / told) if told > 0.0 else 0.0
        seconds[PRODUCTS] += share * times.products
        seconds[HEAD] += share * times.head
        seconds[ATTENTION] += share * times.attention
        seconds[MODEL] += share * (times.model - times.products - times.head - times.attention)
        seconds[SAMPLING] += share * times.sampling
        seconds[RUNNER] += waited - share * told
