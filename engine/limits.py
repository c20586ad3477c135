"""What one step, and the line in front of it, may hold."""

from __future__ import annotations

from dataclasses import dataclass, fields


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

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}: give at least 1")
        if self.max_step_tokens < self.max_sequences:
            raise ValueError(
                f"max_step_tokens ({self.max_step_tokens}) is below max_sequences ({self.max_sequences}): "
                "raise the first or lower the second, so that each sequence gets a token per step"
            )
