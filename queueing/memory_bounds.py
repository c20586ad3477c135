"""When a lane in memory takes nothing more: by jobs, tokens or predicted wait, as lua/submit.lua says it."""

from __future__ import annotations

from typing import Final

from headway.queueing.errors import queue_full
from headway.queueing.intake import Intake
from headway.queueing.memory_lane import Lane
from headway.queueing.messages import Priority
from headway.queueing.settings import QueueSettings

SHARE_OF_FREE: Final = 9
"""What one tenant alone may fill, as a multiple of what is free: the last tenth is kept for others."""
_USUAL_RETRY_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = (1.0, 60.0)


def refuse_if_full(lane_name: str, lane: Lane, intake: Intake, settings: QueueSettings, now_ms: int) -> None:
    """Raise QueueFullError when a job must not be added."""
    own_jobs = sum(len(band.jobs_of(intake.tenant)) for band in lane.bands.values())
    own_tokens = sum(band.tokens.get(intake.tenant, 0) for band in lane.bands.values())
    jobs, tokens = lane.queued_jobs, lane.queued_tokens
    most_jobs, most_tokens = settings.max_queued_jobs, settings.max_queued_tokens
    bound = None
    after = _USUAL_RETRY_SECONDS
    if jobs >= most_jobs or _is_over_share(jobs, most_jobs, own_jobs):
        bound = "jobs"
    elif tokens > 0 and (
        tokens + intake.cost > most_tokens or _is_over_share(tokens, most_tokens, own_tokens)
    ):
        bound = "tokens"
    elif tokens > 0:
        wait = lane.seconds_for(_tokens_ahead(lane, intake), now_ms)
        if wait is not None and wait > settings.max_wait_seconds:
            bound, after = "wait", wait - settings.max_wait_seconds
    if bound is not None:
        least, most = _RETRY_SECONDS
        raise queue_full(lane_name, jobs, bound, min(max(after, least), most))


def _is_over_share(total: int, bound: int, own: int) -> bool:
    return total * (SHARE_OF_FREE + 1) >= bound * SHARE_OF_FREE and own >= SHARE_OF_FREE * (bound - total)


def _tokens_ahead(lane: Lane, intake: Intake) -> float:
    """Better bands go first, and of its own as much as fair shares let pass before the tenant's last job."""
    ahead = 0.0
    for priority in Priority:
        if priority is intake.priority:
            break
        ahead += sum(lane.bands[priority].tokens.values())
    band, weight = lane.bands[intake.priority], lane.weight_of(intake.tenant)
    own = band.tokens.get(intake.tenant, 0)
    return ahead + min(sum(band.tokens.values()), own * (weight + len(band.tokens)) / weight)
