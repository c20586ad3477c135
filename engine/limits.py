"""What one step, and the line in front of it, may hold."""

from __future__ import annotations

from dataclasses import dataclass, fields

from headway.engine.values import Objective, RequestSpec


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Hard caps of the scheduler. Raises ValueError, naming the setting, when they cannot work together.

    ``max_step_tokens`` ≥ ``max_sequences``, so that decodes always leave a token for a prefill: neither can
    starve the other.
    """

    max_step_tokens: int = 512
    """Tokens computed in one step, decodes and prefill chunks together."""
    max_sequences: int = 64
    """Requests in one step. A held request does not count: its reader's delay is nobody else's."""
    min_chunk_tokens: int = 32
    """A prefill chunk is not cut below this (or half the budget, if that is less) to make room for others."""
    max_waiting: int = 1024
    """Requests that may wait to start; one more is refused with EngineFullError."""
    max_passes: int = 64
    """How often later requests may start before one whose blocks do not fit yet; then all behind it wait."""
    max_looks: int = 16
    """Requests that do not fit which one step looks at, in order, while something else can run."""
    max_skipped_steps: int = 8
    """Steps in a row that may leave a decode out whose token is not due yet, to make time for prefills."""
    max_step_seconds: float = 0.5
    """Predicted time of one step, when no token is due earlier."""
    max_gap_seconds: float = 0.12
    """The same, with decodes whose tokens have no due time; prefills get as much of a step as those."""
    min_step_seconds: float = 0.01
    """The same, when tokens are due earlier: a step is not planned shorter for them."""
    objectives: tuple[Objective, ...] = ()
    """By class, best first; classes without one have no due times and decode in every step."""
    is_overcommitted: bool = False
    """Admit by the peak that answers of usual length need, not the longest; preempt when it was wrong."""

    def objective_of(self, spec: RequestSpec) -> Objective | None:
        """Its own objective, or that of its class."""
        if spec.objective is not None or not 0 <= spec.priority < len(self.objectives):
            return spec.objective
        return self.objectives[spec.priority]

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and not isinstance(value, bool) and value < 1:
                raise ValueError(f"{field.name} is {value}: give at least 1")
        if not 0.0 < self.min_step_seconds <= self.max_step_seconds:
            raise ValueError(
                f"min_step_seconds ({self.min_step_seconds}) must be above 0 and at most max_step_seconds "
                f"({self.max_step_seconds})"
            )
        if self.max_gap_seconds <= 0.0:
            raise ValueError(f"max_gap_seconds is {self.max_gap_seconds}: give more than 0")
        if self.max_step_tokens < self.max_sequences:
            raise ValueError(
                f"max_step_tokens ({self.max_step_tokens}) is below max_sequences ({self.max_sequences}): "
                "raise the first or lower the second, so that each sequence gets a token per step"
            )
