"""A deadline that cannot be met is told at the door, not after the work was done in vain."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headway.engine.errors import DeadlineError
from headway.engine.forecast import Forecast
from headway.engine.request import Request

BEST_EFFORT: Final = 2
"""The class of what was demoted, unless it was in a lower one."""


def refuse_unreachable(request: Request, now: float, forecast: Forecast, *, has_seat: bool) -> None:
    """Predict a newcomer's service time, for its place in the line, and its end.

    Raises DeadlineError when that lies after its deadline; a demotable request loses deadline and class
    instead. A deadline that has passed is not judged here: it ends by the next step, with its own reason.
    ``has_seat``: it would start at once.
    """
    spec = request.spec
    deadline = spec.deadline_seconds
    if deadline is None or deadline <= now or not forecast.is_known:
        return
    request.service_seconds = service = forecast.service_seconds(request)
    wait = 0.0 if has_seat else forecast.wait_seconds(request)
    if now + wait + service <= deadline:
        return
    if not spec.is_demotable:
        raise DeadlineError(
            f"by prediction it starts in {wait:.1f} s and then takes {service:.1f} s, but its deadline "
            f"is in {deadline - now:.1f} s: allow more time, ask for less, or let it run at best effort"
        )
    request.spec = replace(spec, priority=max(spec.priority, BEST_EFFORT), deadline_seconds=None)
    request.service_seconds = 0.0
