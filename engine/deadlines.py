"""A deadline that cannot be met is told at the door, not after the work was done in vain."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headway.engine.errors import DeadlineError
from headway.engine.forecast import Forecast
from headway.engine.request import Request
from headway.engine.values import RequestSpec

BEST_EFFORT: Final = 2
"""The class of what was demoted, unless it was in a lower one."""


def refuse_unreachable(request: Request, now: float, forecast: Forecast, *, has_seat: bool) -> None:
    """Predict a newcomer's service time, for its place in the line, and its end.

    Raises DeadlineError when that lies after its deadline; a demotable request is demoted instead. A deadline
    that has passed is not judged here, but by the next step. An answer that has begun goes on to its deadline
    anyway: what it has is worth more than a refusal. ``has_seat``: it would start at once.
    """
    spec = request.spec
    deadline = spec.deadline_seconds
    if deadline is None or deadline <= now or not forecast.is_known:
        return
    request.service_seconds = service = forecast.service_seconds(request)
    wait = 0.0 if has_seat else forecast.wait_seconds(request)
    if spec.generated_token_ids or now + wait + service <= deadline:
        return
    if not spec.is_demotable:
        raise DeadlineError(
            f"by prediction it starts in {wait:.1f} s and then takes {service:.1f} s, but its deadline "
            f"is in {deadline - now:.1f} s: allow more time, ask for less, or let it be demoted"
        )
    request.spec = demoted(spec)
    request.service_seconds = 0.0


def demoted(spec: RequestSpec) -> RequestSpec:
    """The same request at best effort: without a deadline, in the lowest class."""
    return replace(spec, priority=max(spec.priority, BEST_EFFORT), deadline_seconds=None)
