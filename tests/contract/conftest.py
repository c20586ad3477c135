"""One bench for every implementation of the queue: the same steps, the same expectations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from headway.queueing.claims import Claim, Emit, Fenced, Finish
from headway.queueing.events import (
    START,
    ChoiceEnd,
    ChoiceResult,
    Cursor,
    EndEvent,
    EndReason,
    JobResult,
    StreamEvent,
    TokenEvent,
    Usage,
)
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.messages import Job, Priority
from headway.queueing.protocol import Queue
from headway.queueing.redis_queue import RedisQueue
from headway.queueing.settings import QueueSettings

if TYPE_CHECKING:
    from tests.conftest import RedisServer
    from tests.server_groups import ClusterServers

MODEL = "org/tiny"


class Bench:
    """A queue, a way to let its clock pass, and the moves of a producer and a worker.

    ``elapse`` moves a virtual clock for MemoryQueue and sleeps for a server, so times here are short.
    """

    def __init__(self, kind: str, url: str | None) -> None:
        self.kind = kind
        self.url = url
        self._now = 1_700_000_000.0
        self._open: list[MemoryQueue | RedisQueue] = []
        self.queue: Queue = self.make()

    def make(self, **settings: Any) -> Queue:
        """A queue with these settings; on a server, one more view of the same jobs."""
        chosen = QueueSettings(**settings)
        queue: MemoryQueue | RedisQueue
        if self.url is None:
            queue = MemoryQueue(chosen, clock=lambda: self._now, rng=Random(7))
        else:
            queue = RedisQueue(self.url, chosen)
        self._open.append(queue)
        self.queue = queue
        return queue

    async def elapse(self, seconds: float) -> None:
        if self.url is None:
            self._now += seconds
        else:
            await asyncio.sleep(seconds)

    async def close(self) -> None:
        for queue in self._open:
            await queue.close()

    # -- producer -------------------------------------------------------------------------------------

    async def submit(self, key: str | None = None, **fields: Any) -> str:
        if not {"prompt", "messages", "prompt_token_ids"} & fields.keys():
            fields["prompt"] = "once upon"
        job = Job.model_validate({"model": MODEL, **fields})
        return (await self.queue.submit(job, key=key)).job_id

    async def submit_body(self, body: bytes, key: str | None = None) -> str:
        assert isinstance(self.queue, MemoryQueue | RedisQueue)
        return (await self.queue.submit_body(MODEL, body, key=key)).job_id

    async def read(self, job_id: str, after: Cursor = START) -> tuple[StreamEvent, ...]:
        return await self.queue.read(job_id, after, wait_seconds=0)

    async def end(self, job_id: str) -> EndEvent:
        last = (await self.read(job_id))[-1]
        assert isinstance(last, EndEvent)
        return last

    # -- worker ---------------------------------------------------------------------------------------

    async def claim(
        self, room: int = 100, worker: str = "w1", *, least: Priority = Priority.BATCH
    ) -> list[Claim]:
        return list(await self.queue.claim(MODEL, worker, room, least=least))

    async def claim_one(self, worker: str = "w1", *, least: Priority = Priority.BATCH) -> Claim:
        (claim,) = await self.claim(1, worker, least=least)
        return claim

    async def emit(self, claim: Claim, *events: TokenEvent) -> Fenced:
        (outcome,) = await self.queue.emit([Emit(claim.job_id, claim.token, events)])
        return outcome

    async def finish(self, claim: Claim, *events: TokenEvent, **changes: Any) -> Fenced:
        (outcome,) = await self.queue.finish([self.ending(claim, *events, **changes)])
        return outcome

    @staticmethod
    def emit_of(claim: Claim, *events: TokenEvent, **changes: Any) -> Emit:
        return Emit(**{"job_id": claim.job_id, "token": claim.token, "entries": events, **changes})

    @staticmethod
    def token(at: int, text: str | None = None, choice: int = 0) -> TokenEvent:
        """The entry that brings the ``at``-th token."""
        return TokenEvent(Cursor(at), choice, f"t{at} " if text is None else text, (100 + at,))

    @staticmethod
    def ending(claim: Claim, *events: TokenEvent, **changes: Any) -> Finish:
        """A stop after the committed and these tokens."""
        tokens = [token for event in (*claim.committed, *events) for token in event.token_ids]
        text = "".join(event.text for event in (*claim.committed, *events))
        usage = Usage(prompt_tokens=2, completion_tokens=len(tokens))
        stop = EndReason.STOP
        fields: dict[str, Any] = {
            "job_id": claim.job_id,
            "token": claim.token,
            "end": EndEvent(Cursor(len(tokens), 1), stop, (ChoiceEnd(stop),), usage),
            "result": JobResult(claim.job_id, stop, (ChoiceResult(text, tuple(tokens), stop),), usage),
            "entries": events,
        }
        return Finish(**{**fields, **changes})


@pytest.fixture(params=["memory", "redis7", "valkey9", "cluster"])
async def bench(
    request: pytest.FixtureRequest,
    shared_redis: Callable[[str], RedisServer],
    shared_cluster: Callable[[str], ClusterServers],
) -> AsyncIterator[Bench]:
    kind = request.param
    if kind == "memory":
        made = Bench(kind, None)
    elif kind == "cluster":
        made = Bench(kind, shared_cluster("redis7").url)
    else:
        made = Bench(kind, shared_redis(kind).url)
    yield made
    await made.close()
