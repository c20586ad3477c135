"""What tenants used by day, within one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, timedelta

from headway.queueing.day_usage import DAYS_KEPT, OTHERS, TENANTS_COUNTED, DayUsage, day_of


@dataclass(slots=True)
class UsedDays:
    """Of one lane: jobs, prompt tokens and completion tokens by day and tenant."""

    _days: dict[date, dict[str, tuple[int, int, int]]] = field(
        default_factory=dict[date, dict[str, tuple[int, int, int]]]
    )

    def count(self, tenant: str, prompt_tokens: int, completion_tokens: int, ended_ms: int) -> None:
        """Count one job that ended."""
        today = day_of(ended_ms)
        if today not in self._days:
            self._days = {day: used for day, used in self._days.items() if day > today - _KEPT}
            self._days[today] = {}
        used = self._days[today]
        name = tenant if tenant in used or len(used) < TENANTS_COUNTED else OTHERS
        jobs, prompt, completion = used.get(name, (0, 0, 0))
        used[name] = (jobs + 1, prompt + prompt_tokens, completion + completion_tokens)

    def rows(self, model: str, day: date) -> list[DayUsage]:
        """A day's usage by tenant."""
        return [
            DayUsage(day, tenant, model, *counts)
            for tenant, counts in sorted(self._days.get(day, {}).items())
        ]


_KEPT = timedelta(days=DAYS_KEPT)
