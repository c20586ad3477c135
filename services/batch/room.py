"""How many lines of a batch may be in the queue: all that it likes, or few where others are served as well.

A worker that is full of a batch's jobs takes no other job before one of them ends. So, where better classes
were served lately, the batches together leave three quarters of the workers' places free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headway.queueing.messages import Priority
from headway.queueing.protocol import Queue
from headway.queueing.worker_card import WorkerCard

LATELY_MS: Final = 15_000
ENDS_LOOKED_AT: Final = 300
MODELS_LOOKED_AT: Final = 8
PLACES_PART: Final = 4
"""One in so many places is for batches."""
MOST_BATCHES: Final = 4
"""So many are worked on at once in a process: what batches may have is not divided by more."""


async def lines_in_flight(
    queue: Queue, models: Sequence[str], workers: Sequence[WorkerCard], most: int, now_ms: int
) -> int:
    """How many lines of one batch may be in the queue now, ``most`` at most. Raises QueueUnavailableError."""
    models = models[:MODELS_LOOKED_AT]
    if not any([await _serves_others(queue, model, now_ms) for model in models]):
        return most
    places = sum(card.max_running for card in workers if card.model in models)
    batches = min(MOST_BATCHES, max(1, await queue.batch_store.count_open()))
    return max(1, min(most, places // PLACES_PART // batches))


async def _serves_others(queue: Queue, model: str, now_ms: int) -> bool:
    """Whether a job of a better class ended lately."""
    ended = await queue.recent_jobs(model, ENDS_LOOKED_AT)
    return any(job.priority is not Priority.BATCH and now_ms - job.ended_ms < LATELY_MS for job in ended)
