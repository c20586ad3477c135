"""One wrong line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """``file`` with its only ``right`` replaced by ``wrong``; ``test`` fails then."""

    name: str
    file: str
    right: str
    wrong: str
    test: str
