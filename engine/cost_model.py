"""How long a step takes, learned while it runs, and what a request's part in it is worth.

    T = a + b·n + c·Σcontext + q·Σ m(p + m/2)        n      new tokens of the step
                                                     context  tokens that a chunk attends to (its end)
                                                     m, p   tokens and start of each chunk of more than one

One model for steps of decodes alone, one for decodes with guesses, one for all others: their constants
differ. Fitted by recursive least squares of the relative error with forgetting (Ljung, System Identification,
ch. 11), coefficients never below zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from headway.engine.limits import StepLimits

SCALES: Final = (1.0, 64.0, 4096.0, 65536.0)
"""Units of the four features inside the fit, so that none drowns the others."""
FORGETTING: Final = 0.99
"""A step counts half after about 70 more."""
NOISE: Final = 0.01
"""Variance of a step's time, relative to it (a tenth up or down is nothing special)."""
RESTART_SHARE: Final = 1e-4
"""Of the first variance, when the fit has to begin it again: little, since the coefficients are known."""
WARM_STEPS: Final = 16
ERROR_SHARE: Final = 0.05
"""Weight of the newest step in the tracked error."""
MOST_ERROR: Final = 0.3
"""Above this relative error predictions are not used."""
GOOD_ERROR: Final = 0.05
TAUGHT_STEPS: Final = 512
RATE_SHARE: Final = 0.2
"""Weight of the newest step in the rate, where it was slower."""
RATED_TOKENS: Final = 64
"""A step of fewer tokens tells more of the fixed part of a step than of what tokens take."""
MOST_CONTEXT_PRICE: Final = 1 / 64
"""A context token read costs at most this share of a new token, whatever the fit says."""


class StepShape(NamedTuple):
    """What the model sees of a step."""

    new_tokens: int
    context_tokens: int
    prefill_work: float
    """Σ m(p + m/2) over chunks of more than one token; 0: a step of decodes alone."""
    has_drafts: bool = False
    """Its chunks of more than one token are all decodes with guesses, which are no prefill work."""


def shape_of(chunks: Iterable[tuple[int, int]]) -> StepShape:
    """The shape of a step whose chunks are (start, tokens)."""
    new_tokens = context_tokens = 0
    prefill_work = 0.0
    for start, tokens in chunks:
        new_tokens += tokens
        context_tokens += start + tokens
        if tokens > 1:
            prefill_work += tokens * (start + tokens / 2)
    return StepShape(new_tokens, context_tokens, prefill_work)


class StepModel:
    """One fitted line through step times."""

    def __init__(self) -> None:
        size = len(SCALES)
        self._scaled = [0.0] * size
        self.coefficients = (0.0, 0.0, 0.0, 0.0)
        """a, b, c, q in seconds per unit."""
        self._variance: list[list[float]] = []
        self._first_variance: list[float] = []
        self.steps = 0
        self.error = 0.0
        """Mean relative error of the predictions, newest steps first; meaningful once warm."""

    @property
    def is_trusted(self) -> bool:
        """Whether predictions may be used."""
        return self.steps >= WARM_STEPS and self.error <= MOST_ERROR

    def predict(self, shape: StepShape) -> float:
        """Seconds that a step of this shape takes."""
        a, b, c, q = self.coefficients
        return a + b * shape.new_tokens + c * shape.context_tokens + q * shape.prefill_work

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learn from a step that took ``seconds``."""
        seconds = max(seconds, 1e-9)
        # Relative to the step's time: short steps count as much as long ones, and one pause of the machine
        # next to nothing.
        one, new, context, work = SCALES
        x = [
            1.0 / one / seconds,
            shape.new_tokens / new / seconds,
            shape.context_tokens / context / seconds,
            shape.prefill_work / work / seconds,
        ]
        if not self._variance:
            # At first each coefficient alone may explain the whole step.
            self._first_variance = [1.0 / max(value, 1e-3 / seconds) ** 2 for value in x]
            self._spread_out(1.0)
        surprise = 1.0 - _dot(self._scaled, x)
        self._track(abs(surprise))
        # What is predicted well teaches little: after a while every fourth step is enough.
        if self.steps % 4 == 0 or self.steps < TAUGHT_STEPS or self.error > GOOD_ERROR:
            self._learn(x, surprise)

    def _track(self, error: float) -> None:
        if self.steps >= WARM_STEPS // 2:
            share = max(ERROR_SHARE, 1 / (1 + self.steps - WARM_STEPS // 2))
            self.error += share * (min(error, 1.0) - self.error)
        self.steps += 1

    def _learn(self, x: list[float], surprise: float) -> None:
        spread = _spread(self._variance, x)
        if _dot(x, spread) < 0.0:
            # Rounding has eaten the covariance up: thousands of steps that hardly differ do that.
            self._spread_out(RESTART_SHARE)
            spread = _spread(self._variance, x)
        variance = self._variance
        # No forgetting where nothing new is learned: a variance never grows above its first value.
        forgetting = FORGETTING
        for i, first in enumerate(self._first_variance):
            if variance[i][i] > first:
                forgetting = 1.0
        whole = forgetting * NOISE + _dot(x, spread)
        is_eaten_up = False
        for i, row in enumerate(variance):
            gain = spread[i] / whole
            self._scaled[i] += gain * surprise
            for j in range(i, len(row)):
                row[j] = variance[j][i] = (row[j] - gain * spread[j]) / forgetting
            if row[i] <= 0.0:
                is_eaten_up = True
        if is_eaten_up:
            self._spread_out(RESTART_SHARE)
        if min(self._scaled) < 0.0:
            self._project()
        (a, b, c, q), (one, new, context, work) = self._scaled, SCALES
        self.coefficients = (a / one, b / new, c / context, q / work)

    def _spread_out(self, share: float) -> None:
        """Begin the covariance again at a share of its first value; what was learned stays."""
        self._variance = [
            [share * first * (i == j) for j in range(len(self._first_variance))]
            for i, first in enumerate(self._first_variance)
        ]

    def _project(self) -> None:
        """Bring negative coefficients to zero, letting the others take over what they explained."""
        scaled = self._scaled
        for _ in scaled:
            least = min(scaled)
            if least >= 0.0:
                return
            worst = scaled.index(least)
            share = least / max(self._variance[worst][worst], 1e-300)
            for j, row in enumerate(self._variance):
                scaled[j] -= row[worst] * share
            scaled[worst] = 0.0
        self._scaled = [max(0.0, value) for value in scaled]


class CostModel:
    """Predicts steps, and prices work for the fairness ledger."""

    def __init__(self) -> None:
        self.decode = StepModel()
        self.mixed = StepModel()
        self.verify = StepModel()
        """Of decodes with guesses."""
        self._rate = 0.0
        """Seconds per token of lately computed steps with prefills, if they had some; 0: there was none."""
        self._prices = (0.0, 0.0)
        """Of a token of context, and of a unit of prefill work, where a new token costs 1."""

    @property
    def is_trusted(self) -> bool:
        """Whether budgets may be seconds; False: they are tokens."""
        return self.mixed.is_trusted and (self.decode.is_trusted or self.decode.steps < WARM_STEPS)

    @property
    def error(self) -> float:
        """Relative error of the worse of the two models."""
        return max(self.decode.error, self.mixed.error)

    def predict(self, shape: StepShape) -> float:
        """Seconds that a step of this shape takes; 0 while nothing is known."""
        return self._model(shape).predict(shape)

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learn from a step."""
        if seconds > 0.0:
            self._model(shape).observe(shape, seconds)
            if shape.prefill_work and shape.new_tokens >= RATED_TOKENS:
                rate = seconds / shape.new_tokens
                self._rate = min(rate, self._rate + RATE_SHARE * (rate - self._rate)) if self._rate else rate
            _, b, c, q = self.mixed.coefficients
            if b > 0.0 and self.mixed.is_trusted:
                self._prices = min(c / b, MOST_CONTEXT_PRICE), min(q / b, MOST_CONTEXT_PRICE)

    def likely_tokens(self, limits: StepLimits) -> int:
        """New tokens for a step while predictions are not trusted: as many as lately took as long as it may.

        Too few rather than too many, since the rate counts a step's fixed part with its tokens, but always a
        token for each sequence and a chunk. All that the limits allow before the first step that was rated.
        """
        if not self._rate:
            return limits.max_step_tokens
        likely = min(limits.max_step_seconds, limits.max_gap_seconds) / self._rate
        return int(min(limits.max_step_tokens, max(limits.max_sequences + limits.min_chunk_tokens, likely)))

    def decode_seconds(self, count: int, context_tokens: int) -> float:
        """What ``count`` decodes with so much context in all add to a step."""
        _, b, c, _ = self.mixed.coefficients
        return b * count + c * context_tokens

    def step_seconds(self) -> float:
        """The part of a step that does not depend on what it computes."""
        return self.mixed.coefficients[0]

    def marginal_seconds(self, start: int, tokens: int) -> float:
        """What computing ``tokens`` from ``start`` on adds to a step; convex in ``tokens``."""
        _, b, c, q = self.mixed.coefficients
        work = tokens * (start + tokens / 2) if tokens > 1 else 0.0
        return b * tokens + c * (start + tokens) + q * work

    def price(self, start: int, tokens: int) -> float:
        """The same in units of one new token, so that it means something before anything is known.

        Then, and where the fit is no good, each new token costs 1.
        """
        context, work = self._prices
        if tokens == 1:
            return 1.0 + context * (start + 1)
        return tokens + context * (start + tokens) + work * (tokens * (start + tokens / 2))

    def _model(self, shape: StepShape) -> StepModel:
        if shape.has_drafts:
            return self.verify
        return self.mixed if shape.prefill_work else self.decode


def _spread(variance: list[list[float]], x: list[float]) -> list[float]:
    first, second, third, fourth = variance
    return [_dot(first, x), _dot(second, x), _dot(third, x), _dot(fourth, x)]


def _dot(left: list[float], right: list[float]) -> float:
    a, b, c, q = left
    x, y, z, w = right
    return a * x + b * y + c * z + q * w
