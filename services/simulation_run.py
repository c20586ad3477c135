"""What one simulated run brought: a journey per request, gaps between tokens, the load, who was served."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from headway.engine.timeline import Timeline
from headway.engine.values import FinishReason, Sampled
from headway.services.traffic import Demand

GAP_SECONDS: Final = 1e-5
"""Resolution of the recorded gaps between tokens."""


@dataclass(slots=True)
class Journey:
    """What happened to one request."""

    demand: Demand
    arrival_seconds: float
    last_position: int
    """Length of prompt and answer at which its last token is chosen."""
    replies: tuple[Sampled, Sampled]
    """What the device says of it: that it goes on, that it ends."""
    first_scheduled_seconds: float | None = None
    first_token_seconds: float | None = None
    last_token_seconds: float = 0.0
    finish_seconds: float | None = None
    finish_reason: FinishReason | None = None
    tokens: int = 0
    starts: int = 0
    """How often the runner had to be told of it: once, and again after each preemption."""
    lag_seconds: float = 0.0
    """The latest of its tokens, j·TPOT after its arrival taken away: what a TTFT limit is compared with."""
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """The state at one moment."""

    seconds: float
    running: int
    waiting: int
    kv_share: float


@dataclass(slots=True)
class SimulationRun:
    """Everything that one run brought."""

    journeys: list[Journey] = field(default_factory=list[Journey])
    gaps: Counter[int] = field(default_factory=Counter[int])
    """Times between two tokens of a request, in units of GAP_SECONDS."""
    load: list[LoadPoint] = field(default_factory=list[LoadPoint])
    service: dict[str, float] = field(default_factory=dict[str, float])
    """Per tenant: GPU seconds that its tokens caused."""
    backlogged_service: dict[str, float] = field(default_factory=dict[str, float])
    """The same, of the steps before which every tenant had a request waiting."""
    backlogged_seconds: float = 0.0
    steps: int = 0
    busy_seconds: float = 0.0
    computed_tokens: int = 0
    end_seconds: float = 0.0
    timeline: Timeline = field(default_factory=Timeline)
    """The scheduler's own, of the last steps and events."""
    extra: dict[str, float] = field(default_factory=dict[str, float])
    """The scheduler's own counters at the end."""
