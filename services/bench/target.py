"""What load is put on: an OpenAI-compatible server, or Headway's own queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from headway.services.bench.answer import Answer, Planned

Now = Callable[[], float]
"""Seconds since the start of the point."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the server says of itself."""

    model: str
    context_tokens: int | None = None
    """Prompt and answer at most; None: it does not say."""
    server: str = ""
    shown: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further facts for the result."""


class Ready(Protocol):
    """A request that only has to be sent."""

    async def ask(self, answer: Answer, now: Now) -> None:
        """Send it and note in ``answer`` what comes back, to its end. Raises nothing of its own."""
        ...


class Target(Protocol):
    """Where requests go. Only ``prepare`` and what it gives are used while anything is measured."""

    async def open(self) -> Facts:
        """Look whether it can be measured. Raises ServiceError that says what to do."""
        ...

    async def count(self, text: str) -> int | None:
        """Tokens of a prompt as the model sees it, template included; None: it has no tokenizer to ask."""
        ...

    async def probe(self) -> None:
        """One short answer, however it ends."""
        ...

    def prepare(self, planned: Planned, text: str) -> Ready:
        """All work that can be done before it has to be sent."""
        ...

    async def close(self) -> None:
        """Release what it holds."""
        ...
