"""What an operator may set of the fair policy; light to import: the command line reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class FairSettings:
    """None: as the policy has it by itself (60 s, 1,024 tokens, 60 s)."""

    age_limit_seconds: float | None = None
    """A tenant that its class has left without a start for so long goes ahead of the better classes."""
    quantum_tokens: int | None = None
    """Service within which tenants are equals, and the longer cached prefix goes first among them."""
    patience_seconds: float | None = None
    """Jobs without a deadline are ordered, inside their tenant, as if they had this one."""


UNSET: Final = FairSettings()
