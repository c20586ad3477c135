"""What each tenant used on each day: counted once, at a job's end, in the same step that ends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final

from headway.queueing.tenants import is_tenant

DAYS_KEPT: Final = 93
"""A quarter, as lua/ending.lua has it."""
OTHERS: Final = "*"
"""Tenants beyond the first 10,000 of a day are counted together: whoever makes names up fills no memory."""
TENANTS_COUNTED: Final = 10_000
DAY_MS: Final = 86_400_000

COUNTED: Final = ("jobs", "prompt", "completion")


@dataclass(frozen=True, slots=True, order=True)
class DayUsage:
    """One tenant's jobs that ended on a day (UTC, the server's clock), with one model."""

    day: date
    tenant: str
    """``*``: all beyond the 10,000 that a day counts by name."""
    model: str
    jobs: int
    prompt_tokens: int
    """Of jobs that their worker ended; nobody counted those of others."""
    completion_tokens: int
    """As published, over all choices: also of jobs that were cancelled, late or given up."""

    def shown(self) -> dict[str, Any]:
        """The row as values of JSON."""
        return {
            "day": self.day.isoformat(),
            "tenant": self.tenant,
            "model": self.model,
            "jobs": self.jobs,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }


def day_number(day: date) -> int:
    """Days since 1970, as the keys have it."""
    return (day - date(1970, 1, 1)).days


def day_of(milliseconds: int) -> date:
    """The day (UTC) of a time in milliseconds since the epoch."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).date()


def usage_of(model: str, day: date, fields: Mapping[str, bytes]) -> list[DayUsage]:
    """The rows of a day's hash, ``jobs:<tenant>`` and so on, by tenant; what is not ours is passed over."""
    counts: dict[str, dict[str, int]] = {}
    for name, text in fields.items():
        what, _, tenant = name.partition(":")
        if what in COUNTED and (tenant == OTHERS or is_tenant(tenant)) and text.isdigit():
            counts.setdefault(tenant, {})[what] = int(text)
    return [
        DayUsage(day, tenant, model, *(found.get(what, 0) for what in COUNTED))
        for tenant, found in sorted(counts.items())
    ]
