"""A reader and a worker that sit out any outage of the queue."""

from __future__ import annotations

import asyncio

from tests.queueing.conftest import Held, emit, stop

from headway.queueing.claims import Fenced
from headway.queueing.errors import QueueUnavailableError
from headway.queueing.events import START, EndEvent, StreamEvent
from headway.queueing.redis_queue import RedisQueue


async def patient_follow(queue: RedisQueue, job_id: str) -> list[StreamEvent]:
    """Every event of a job up to its end."""
    seen: list[StreamEvent] = []
    while not seen or not isinstance(seen[-1], EndEvent):
        try:
            seen += await queue.read(job_id, seen[-1].cursor if seen else START, wait_seconds=5)
        except QueueUnavailableError:
            await asyncio.sleep(0.05)
    return seen


async def work_through(queue: RedisQueue, model: str, *, worker: str = "w", tokens: int) -> None:
    """Give one job its tokens, whatever happens to its claim on the way."""
    while True:
        try:
            for claim in await queue.claim(model, worker, 1):
                done = sum(len(event.token_ids) for event in claim.committed)
                if await _give(queue, claim, done, tokens):
                    return
            await queue.reap(model)
        except QueueUnavailableError:
            pass
        await asyncio.sleep(0.05)


async def _give(queue: RedisQueue, claim: Held, done: int, tokens: int) -> bool:
    """Whether the job's end was written under this claim."""
    while True:
        try:
            if done == tokens:
                return await queue.finish([stop(claim, tokens)]) == (Fenced.OK,)
            if await queue.emit([emit(claim, done + 1)]) != (Fenced.OK,):
                return False
            done += 1
            await asyncio.sleep(0.02)
        except QueueUnavailableError:
            await asyncio.sleep(0.05)
