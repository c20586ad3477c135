"""What a tenant may ask of the service: shares, rates, bounds and permissions, validated where they come in.

One model serves `headway tenants set`, tenants.toml and what is kept in Redis, so there is one set of rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from headway.queueing.errors import InvalidTenantError
from headway.queueing.messages import MODEL_PATTERN, TENANT_PATTERN, Priority

EVERYONE: Final = "*"
"""The entry whose limits hold for each tenant that has none of its own."""

_TENANT = re.compile(TENANT_PATTERN.removesuffix("$") + r"\Z")

Count = Annotated[int, Field(strict=True, ge=1, le=100_000_000)]
"""The largest: a bucket's contents stay whole numbers in the server's arithmetic (lua/buckets.lua)."""


class TenantLimits(BaseModel):
    """One tenant's limits; None is no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    weight: Annotated[float, Field(strict=True, ge=0.001, le=1_000_000)] = 1.0
    """Share of the machine time beside other tenants that want some."""
    classes: Annotated[tuple[Priority, ...], Field(min_length=1)] | None = None
    models: (
        Annotated[
            tuple[Annotated[str, Field(max_length=128, pattern=MODEL_PATTERN)], ...], Field(min_length=1)
        ]
        | None
    ) = None
    rpm: Count | None = None
    """Requests per minute."""
    tpm: Count | None = None
    """Tokens per minute, of prompts and answers."""
    concurrency: Count | None = None
    """Jobs accepted and not yet ended."""
    queued_jobs: Count | None = None
    queued_tokens: Count | None = None
    """Jobs that wait, and the tokens that they may take."""
    daily_tokens: Annotated[int, Field(strict=True, ge=1, le=10**12)] | None = None
    """Tokens per day, which begins at midnight UTC."""
    max_tokens: Count | None = None
    """Longest answer: what asks for more, or does not say, gets this."""
    deadline_seconds: Annotated[float, Field(strict=True, gt=0, le=7 * 86_400)] | None = None
    """For jobs that bring none."""

    QUOTAS: ClassVar[tuple[str, ...]] = (
        "rpm", "tpm", "concurrency", "queued_jobs", "queued_tokens", "daily_tokens"
    )  # fmt: skip
    """Fields that need a reservation."""

    @field_validator("classes", "models")
    @classmethod
    def _each_once(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if value is None else tuple(dict.fromkeys(value))

    @property
    def has_quotas(self) -> bool:
        """Whether a job needs a reservation."""
        return any(getattr(self, name) is not None for name in self.QUOTAS)

    def fields(self) -> dict[str, Any]:
        """What is set, as JSON has it."""
        return self.model_dump(mode="json", exclude_none=True, exclude_defaults=True)

    def shown(self) -> dict[str, Any]:
        """Every field, null where there is no limit."""
        return self.model_dump(mode="json")


UNLIMITED: Final = TenantLimits()


def is_tenant(name: str) -> bool:
    """Whether a tenant can be called so."""
    return _TENANT.match(name) is not None


def check_tenant(name: str) -> str:
    """The name itself, which may be EVERYONE; raises InvalidTenantError for one that no tenant can have."""
    if name != EVERYONE and not is_tenant(name):
        raise InvalidTenantError(
            f"tenant {name[:80]!r}: use 1 to 64 characters out of A-Z a-z 0-9 _ . @ -, "
            f"or {EVERYONE} for all that have no limits of their own"
        )
    return name


def read_limits(tenant: str, fields: Mapping[str, object]) -> TenantLimits:
    """Limits from plain values; raises InvalidTenantError that names the field and says what it must be."""
    check_tenant(tenant)
    try:
        limits = TenantLimits.model_validate(fields)
    except ValidationError as error:
        raise _invalid(tenant, error) from None
    if tenant == EVERYONE and limits.weight != 1.0:
        raise InvalidTenantError(
            f"{EVERYONE}: weight: a tenant that is not named has weight 1; weigh the others against it",
            field="weight",
        )
    return limits


def _invalid(tenant: str, error: ValidationError) -> InvalidTenantError:
    first = error.errors(include_url=False, include_context=False)[0]
    field = str(first["loc"][0]) if first["loc"] else ""
    message = re.sub(r"^(Value error, |Input )", "", first["msg"])
    if first["type"] == "extra_forbidden":
        known = ", ".join(TenantLimits.model_fields)
        return InvalidTenantError(f"{tenant}: there is no {field[:80]!r}; there are {known}", field=field)
    given = repr(first["input"])[:80]
    return InvalidTenantError(f"{tenant}: {field}: {message} (it is {given})", field=field)
