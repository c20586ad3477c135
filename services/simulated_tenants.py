"""Who sends the simulated requests: traffic shares, weights, classes and deadlines, from a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from headway.services.errors import UsageError
from headway.services.units import parse_duration

ClassName = Literal["interactive", "standard", "batch"]
PRIORITIES: Final[Mapping[ClassName, int]] = {"interactive": 0, "standard": 1, "batch": 2}
CLASS_NAMES: Final = tuple(PRIORITIES)
"""By priority."""


@dataclass(frozen=True, slots=True)
class SimulatedTenant:
    """One tenant's traffic."""

    name: str
    share: float = 1.0
    """Of the arrivals, relative to the other tenants' shares."""
    weight: float = 1.0
    """Of the service, as the scheduler is told."""
    classes: Mapping[ClassName, float] = field(default_factory=lambda: {"standard": 1.0})
    """How its requests spread over the classes, relative."""
    deadlines: Mapping[ClassName, float] = field(default_factory=dict[ClassName, float])
    """Seconds from arrival, per class; none: no deadline."""
    shared_prefix_tokens: int = 0
    """Tokens with which every prompt of it begins (a system prompt)."""
    backlog: int = 0
    """Above 0: it does not take a share of the arrivals but keeps this many requests waiting, always."""
    prompt_tokens: int | None = None
    """The length of all its prompts; None: as the arrivals say."""
    answer_tokens: int | None = None
    """The length of all its answers; None: as the arrivals say."""


ONE_TENANT: Final = (SimulatedTenant("default"),)


def _duration(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


Duration = Annotated[float, BeforeValidator(_duration), Field(gt=0)]


class _Tenant(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    share: Annotated[float, Field(gt=0)] = 1.0
    weight: Annotated[float, Field(gt=0)] = 1.0
    classes: dict[ClassName, Annotated[float, Field(ge=0)]] = Field(default={"standard": 1.0}, min_length=1)
    deadlines: dict[ClassName, Duration] = {}
    shared_prefix_tokens: Annotated[int, Field(ge=0)] = 0
    backlog: Annotated[int, Field(ge=0, le=100_000)] = 0
    prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    answer_tokens: Annotated[int, Field(ge=1)] | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tenant: dict[str, _Tenant] = Field(min_length=1)


def read_tenants(path: Path) -> tuple[SimulatedTenant, ...]:
    """The tenants of a file with one ``[tenant.NAME]`` table each; UsageError names what is wrong."""
    try:
        read = _File.model_validate(tomllib.loads(path.read_text()))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read the tenants {path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"{path}, {place}: {first['msg']}", hint="[tenant.NAME] tables: see docs/simulate.md"
        ) from None
    for name, tenant in read.tenant.items():
        if not any(tenant.classes.values()):
            raise UsageError(f"{path}, tenant.{name}.classes: give at least one class a share above 0")
    return tuple(SimulatedTenant(name, **dict(tenant)) for name, tenant in read.tenant.items())
