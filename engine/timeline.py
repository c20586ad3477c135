"""What happened when: the last steps and the last events of requests, in rings that never grow.

Cheap enough to be always on: two small records per step, one per event. Token times are not kept twice: a
request's tokens came with the ends of the steps in which it sampled.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from headway.engine.values import RequestKey


class Happening(StrEnum):
    """What can happen to a request."""

    ARRIVED = "arrived"
    ADMITTED = "admitted"
    STARTED = "started"
    PREFILLED = "prefilled"
    SWAPPED = "swapped"
    RECOMPUTED = "recomputed"
    RESUMED = "resumed"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """One thing that happened to one request, on the engine's clock."""

    key: RequestKey
    happening: Happening
    seconds: float
    step: int
    """The last step planned by then."""
    tenant: str
    priority: int
    detail: str = ""
    """The finish reason, or the computed tokens that a preemption met."""


class StepEvent(NamedTuple):
    """One executed step."""

    step: int
    started_at: float
    predicted_seconds: float
    real_seconds: float
    kv_blocks_used: int
    waiting: int
    keys: tuple[RequestKey, ...]
    tokens: array[int]
    """Computed of each request in ``keys``."""
    samples: bytes
    """1 for each request in ``keys`` that got a token."""


class Timeline:
    """Two rings; readers copy them, so any thread may."""

    def __init__(self, *, most_steps: int = 2048, most_events: int = 16384) -> None:
        self.steps: deque[StepEvent] = deque(maxlen=most_steps)
        self.events: deque[RequestEvent] = deque(maxlen=most_events)
