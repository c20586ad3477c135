"""When a lane in memory takes nothing more: by jobs, tokens or predicted times, as lua/submit.lua says it."""

from __future__ import annotations

from typing import Final

from headway.queueing.errors import queue_full
from headway.queueing.intake import Intake
from headway.queueing.memory_lane import Lane
from headway.queueing.messages import Priority
from headway.queueing.settings import QueueSettings

SHARE_OF_FREE: Final = 9
"""What one tenant alone may fill, as a multiple of what is free: the last tenth is kept for others."""
DEADLINE_SHARE: Final = 0.8
"""The part of a deadline that a job's predicted end may take: predictions are a fifth off, and one that is
accepted and then cut off has cost as much as one that was in time."""
USUAL_ROOM: Final = 1.5
"""Of usual answers: as long a new one is thought to get, if it may."""
PRESSED_MS: Final = 60_000
"""A rate that was measured under pressure says for so long what the workers can do."""
_USUAL_RETRY_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = (1.0, 60.0)


def refuse_if_full(
    lane_name: str, lane: Lane, intake: Intake, settings: QueueSettings, exact_ms: float
) -> None:
    """Raise QueueFullError when a job must not be added."""
    own_jobs = sum(len(band.jobs_of(intake.tenant)) for band in lane.bands.values())
    own_tokens = sum(band.tokens.get(intake.tenant, 0) for band in lane.bands.values())
    jobs, tokens = lane.queued_jobs, lane.queued_tokens
    most_jobs, most_tokens = settings.max_queued_jobs, settings.max_queued_tokens
    bound = ""
    after = _USUAL_RETRY_SECONDS
    if jobs >= most_jobs or _is_over_share(jobs, most_jobs, own_jobs):
        bound = "jobs"
    elif tokens > 0 and (
        tokens + intake.cost > most_tokens or _is_over_share(tokens, most_tokens, own_tokens)
    ):
        bound = "tokens"
    elif tokens > 0:
        bound, after = _too_late(lane, intake, settings, exact_ms)
    if bound:
        least, most = _RETRY_SECONDS
        raise queue_full(lane_name, jobs, bound, min(max(after, least), most))


def _is_over_share(total: int, bound: int, own: int) -> bool:
    return total * (SHARE_OF_FREE + 1) >= bound * SHARE_OF_FREE and own >= SHARE_OF_FREE * (bound - total)


def _too_late(lane: Lane, intake: Intake, settings: QueueSettings, exact_ms: float) -> tuple[str, float]:
    """The bound that a job breaks by its predicted wait or end, and by how many seconds; "": none.

    A job has its share of the rate beside those that run. A deadline is judged only where jobs have been
    waiting lately, else the rate may be from when there was little to do; and only behind others: who is
    first gets a place at once, and its worker knows better how long it will take.
    """
    now_ms = int(exact_ms)
    place = exact_ms + 1000 * (intake.due_seconds or settings.patience_seconds)
    ahead = _tokens_ahead(lane, intake, place)
    wait = lane.seconds_for(ahead, now_ms)
    if wait is None:
        return "", 0.0
    if wait > settings.max_wait_seconds:
        return "wait", wait - settings.max_wait_seconds
    if ahead > 0 and intake.deadline_seconds and now_ms - lane.pressed_ms <= PRESSED_MS:
        # Where the tenant has no answers yet, the lane's tell: else newcomers who allow themselves much would
        # be refused for good.
        usual = lane.answers.get(intake.tenant, intake.answer_tokens * lane.answered_share)
        answer = min(intake.answer_tokens, USUAL_ROOM * usual)
        took = answer * lane.running_jobs / lane.rate(now_ms)
        late = wait + took - intake.deadline_seconds * DEADLINE_SHARE
        if late > 0:
            return "deadline", late
    return "", 0.0


def _tokens_ahead(lane: Lane, intake: Intake, place: float) -> float:
    """Better bands go first, and of its own as much as fair shares let pass before the tenant's own jobs with
    an earlier place."""
    ahead = 0.0
    for priority in Priority:
        if priority is intake.priority:
            break
        ahead += sum(lane.bands[priority].tokens.values())
    band, weight = lane.bands[intake.priority], lane.weight_of(intake.tenant)
    own = band.tokens_before(intake.tenant, place)
    return ahead + min(sum(band.tokens.values()), own * (weight + len(band.tokens)) / weight)
