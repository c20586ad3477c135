"""When tokens are written: at once where somebody waits, together where writes would follow too soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from headway.engine.scripted import ByteTokenizer
from headway.engine.values import FinishReason, Output, RequestKey
from headway.queueing.claims import Claim, Emit, Fenced, Finish
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.messages import Job
from headway.services.claim_table import ClaimTable
from headway.services.engine_thread import EngineThread
from headway.services.metrics import WorkerMetrics
from headway.services.publisher import Publisher
from headway.services.translate import ModelSide, prepare

STREAMS = 40


class Recording(MemoryQueue):
    """Remembers how many tokens of how many jobs each write had."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[dict[str, int]] = []

    async def emit(self, emits: Sequence[Emit]) -> tuple[Fenced, ...]:
        self.writes.append({e.job_id: sum(len(entry.token_ids) for entry in e.entries) for e in emits})
        return await super().emit(emits)

    async def finish(self, finishes: Sequence[Finish]) -> tuple[Fenced, ...]:
        self.writes.append({f.job_id: sum(len(entry.token_ids) for entry in f.entries) for f in finishes})
        return await super().finish(finishes)


class Steps:
    """In place of the engine's thread: outputs as the test brings them."""

    def __init__(self) -> None:
        self.outputs: tuple[Output, ...] = ()

    def take(self) -> tuple[Output, ...]:
        outputs, self.outputs = self.outputs, ()
        return outputs

    def add(self, *_: object) -> None: ...

    def acknowledge(self, *_: object) -> None: ...


class Rig:
    def __init__(self) -> None:
        self.queue = Recording()
        self.now = 100.0
        self.steps = Steps()
        self._to_write = asyncio.Event()
        self._side = ModelSide("toy", ByteTokenizer(), 10_000, lambda _: None)
        engine, metrics = cast("EngineThread", self.steps), WorkerMetrics("w", "toy")
        self._table = ClaimTable(
            engine, self._side, metrics, self.clock, self._to_write, max_stream_bytes=1 << 30
        )
        self.publisher = Publisher(self.queue, self._table, engine, metrics, self.clock)

    def clock(self) -> float:
        return self.now

    async def claim(self, jobs: int) -> tuple[Claim, ...]:
        for _ in range(jobs):
            body: Any = Job(model="toy", prompt="x").model_dump_json(exclude_none=True).encode()
            await self.queue.submit_body("toy", body)
        claims = await self.queue.claim("toy", "w", jobs)
        for claim in claims:
            job = self._table.accept(claim)
            self._table.prepared(job, prepare(claim, self._side, self.now))
        return claims

    def step(self, claims: Sequence[Claim], reason: FinishReason | None = None) -> None:
        keys = [RequestKey(f"{claim.job_id}#0", claim.epoch) for claim in claims]
        self.steps.outputs += tuple(Output(key, "a", (97,), finish_reason=reason) for key in keys)
        self._to_write.set()

    async def written(self, writes: int) -> None:
        async with asyncio.timeout(10):
            while len(self.queue.writes) < writes:
                await asyncio.sleep(0.001)

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    task = asyncio.create_task(made.publisher.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_steps_that_follow_too_soon_share_a_write() -> None:
    async with rig() as r:
        claims = await r.claim(STREAMS)
        r.step(claims)
        await r.written(1)
        for _ in range(3):
            r.step(claims)
            await r.settle()
        assert len(r.queue.writes) == 1, "held"
        await r.written(2)  # its longest wait ends by the real clock
        assert set(r.queue.writes[1].values()) == {3}
        assert len(r.queue.writes[1]) == STREAMS


async def test_steps_that_are_long_enough_apart_are_written_one_by_one() -> None:
    async with rig() as r:
        claims = await r.claim(STREAMS)
        for count in range(1, 5):
            r.step(claims)
            await r.settle()
            assert len(r.queue.writes) == count
            assert set(r.queue.writes[-1].values()) == {1}
            r.now += 0.031


async def test_a_lone_stream_is_written_step_by_step() -> None:
    async with rig() as r:
        claims = await r.claim(1)
        for count in range(1, 5):
            r.step(claims)
            await r.settle()
            assert len(r.queue.writes) == count
            r.now += 0.001


async def test_a_first_token_waits_for_nobody_and_takes_along_what_waits() -> None:
    async with rig() as r:
        claims = await r.claim(STREAMS)
        r.step(claims)
        await r.written(1)
        r.step(claims)
        await r.settle()
        assert len(r.queue.writes) == 1, "held"
        (late,) = await r.claim(1)
        r.step([late])
        await r.settle()
        assert r.queue.writes[1] == {claim.job_id: 1 for claim in (*claims, late)}


async def test_an_end_waits_for_nobody() -> None:
    async with rig() as r:
        claims = await r.claim(STREAMS)
        r.step(claims)
        await r.written(1)
        r.step(claims[1:])
        r.step(claims[:1], FinishReason.STOP)
        await r.settle()
        assert {claims[0].job_id: 1} in r.queue.writes[1:]
