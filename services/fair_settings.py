"""What an operator may set of the fair policy; light to import: the command line reads it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from headway.services.errors import UsageError

if TYPE_CHECKING:
    from headway.engine.policy import Policy


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


def make_policy(name: str, fair: FairSettings) -> Policy:
    """A policy by its name; raises UsageError for settings that are not its own, or make no sense."""
    from headway.engine.fair import FairPolicy
    from headway.engine.policy import POLICIES

    given = {setting: value for setting, value in asdict(fair).items() if value is not None}
    if not given:
        return POLICIES[name]()
    if name != "fair":
        raise UsageError(
            f"--age-limit, --quantum and --patience are the fair policy's, which {name} is not",
            hint="--policy fair, or leave them out",
        )
    try:
        return FairPolicy(**given)
    except ValueError as error:
        raise UsageError(str(error), hint="--age-limit, --quantum, --patience") from None
