"""A worker as the fleet knows it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkerCard:
    """What a worker tells the fleet about itself with each heartbeat."""

    worker_id: str
    model: str
    state: str
    """starting | ready | draining."""
    pid: int
    host: str
    version: str
    max_model_len: int
    max_running: int
    running: int
    waiting: int
    kv_used_fraction: float
    step_age_seconds: float
    """Seconds since the engine last completed a step while it had work; 0 when idle."""
    tokens_per_second: float
    created_unix: int
    tool_format: str = ""
    """How the model writes calls of tools (a ToolFormat); empty: not known, as while it loads."""
    reasoning_format: str = ""
    """How it sets its thoughts apart (a ReasoningFormat); empty: not known."""
    computation: str = ""
    """What computes a step, in words; empty: not known, as while it loads."""
    heartbeat_age_seconds: float = field(default=0.0, compare=False)
    """Since its last heartbeat, by the server's clock; ``Queue.workers`` fills it in."""
