"""What is told of a promise about the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineCheck:
    """One promise about the engine."""

    promise: str
    problems: tuple[str, ...]
    detail: str
