"""Whatever the order of calls, a server's queue and the one in memory answer alike; the books stay right."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.conftest import MODEL, Bench
from tests.contract.recount import check_books

from headway.queueing.errors import QueueingError
from headway.queueing.events import START, Cursor
from headway.queueing.messages import Job, Priority

if TYPE_CHECKING:
    from tests.conftest import RedisServer

KEYS = ("a", "b", "c", "d", "e")
NEW_KEYS = ("n1", "n2")
TENANTS = ("t1", "t2", "t3")
Step = tuple[Any, ...]

steps = st.one_of(
    st.tuples(
        st.just("submit"),
        st.sampled_from(KEYS),
        st.sampled_from(TENANTS),
        st.sampled_from(Priority),
        st.sampled_from((None, 1, 50, 3000)),
        st.booleans(),
    ),
    st.tuples(st.just("claim"), st.integers(1, 3), st.sampled_from(("w1", "w2"))),
    st.tuples(st.just("emit"), st.integers(0, 5), st.integers(1, 3)),
    st.tuples(st.just("renew"), st.integers(0, 5)),
    st.tuples(st.just("release"), st.integers(0, 5)),
    st.tuples(
        st.just("finish"), st.integers(0, 5), st.sampled_from((None, 0.0, 7.25, 5000.0)), st.booleans()
    ),
    st.tuples(st.just("cancel"), st.sampled_from(KEYS)),
    st.tuples(st.just("expire"), st.sampled_from(("w1", "w2"))),
    st.tuples(st.just("reap")),
    st.tuples(st.just("weights"), st.sampled_from(TENANTS), st.sampled_from((0.5, 1, 3))),
    st.tuples(st.just("retry"), st.sampled_from(KEYS), st.sampled_from(NEW_KEYS)),
    st.tuples(st.just("redrive"), st.sampled_from(NEW_KEYS)),
    st.tuples(st.just("read"), st.sampled_from(KEYS), st.integers(0, 4)),
)


class Side:
    """One queue, and the claims that its workers remember, stale ones too."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        bench.make(max_attempts=2, max_queued_jobs=4, max_queued_tokens=7000)
        self.claims: list[Any] = []
        self.done: dict[str, int] = {}

    async def take(self, step: Step) -> object:
        try:
            return await getattr(self, step[0])(*step[1:])
        except QueueingError as error:
            return type(error).__name__

    async def submit(
        self, key: str, tenant: str, priority: Priority, max_tokens: int | None, same: bool
    ) -> object:
        extra = {"idempotency_key": "i"} if same else {}
        sampling = {"n": 2, "max_tokens": max_tokens}
        job = Job.model_validate(
            {"model": MODEL, "prompt": "x", "tenant": tenant, "priority": priority, "sampling": sampling}
            | extra
        )
        return await self.bench.queue.submit(job, key=key, reserved="r" if same else "")

    async def claim(self, room: int, worker: str) -> object:
        claims = await self.bench.claim(room, worker)
        self.claims = (self.claims + claims)[-6:]
        for each in claims:
            self.done[each.job_id] = sum(len(event.token_ids) for event in each.committed)
        return [
            (each.job_id, each.epoch, each.attempts, each.committed, each.cancel_reason) for each in claims
        ]

    async def emit(self, which: int, count: int) -> object:
        if not self.claims:
            return None
        claim = self.claims[which % len(self.claims)]
        done = self.done[claim.job_id]
        outcome = await self.bench.emit(
            claim, *(self.bench.token(at, choice=at % 2) for at in range(done + 1, done + 1 + count))
        )
        if outcome != "lost":
            self.done[claim.job_id] = done + count
        return outcome

    async def renew(self, which: int) -> object:
        return await self._with_claim(which, self.bench.queue.renew)

    async def release(self, which: int) -> object:
        return await self._with_claim(which, self.bench.queue.release)

    async def _with_claim(self, which: int, call: Callable[..., Any]) -> object:
        if not self.claims:
            return None
        claim = self.claims[which % len(self.claims)]
        return await call([(claim.job_id, claim.token)])

    async def finish(self, which: int, served: float | None, is_dead: bool) -> object:
        if not self.claims:
            return None
        claim = self.claims[which % len(self.claims)]
        dead_letter = "broken" if is_dead else None
        return await self.bench.finish(claim, served_tokens=served, dead_letter=dead_letter)

    async def weights(self, tenant: str, weight: float) -> None:
        await self.bench.queue.set_weights(MODEL, {tenant: weight})

    async def retry(self, key: str, new_key: str) -> object:
        return await self.bench.queue.retry(f"org--tiny:0:{key}", key=new_key)

    async def redrive(self, new_key: str) -> object:
        letters = await self.bench.queue.dead_letters(MODEL)
        entry_id = letters[-1].entry_id if letters else "1-0"
        return await self.bench.queue.redrive(MODEL, entry_id, key=new_key)

    async def cancel(self, key: str) -> object:
        return await self.bench.queue.cancel(f"org--tiny:0:{key}", "why")

    async def expire(self, worker: str) -> object:
        return await self.bench.queue.expire_worker(MODEL, worker)

    async def reap(self) -> object:
        return await self.bench.queue.reap(MODEL)

    async def read(self, key: str, after: int) -> object:
        return await self.bench.read(f"org--tiny:0:{key}", Cursor(after))

    async def everything(self) -> object:
        """All that can be known of the jobs, without times."""
        queue = self.bench.queue
        facts: list[object] = [await queue.depth(MODEL)]
        facts.append([replace(each, next_created_ms=0) for each in await queue.tenants(MODEL)])
        facts.append([job.job_id for job in await queue.waiting_jobs(MODEL)])
        facts.append(sorted(job.job_id for job in await queue.running_jobs(MODEL)))
        facts.append([replace(job, created_ms=0, ended_ms=0) for job in await queue.recent_jobs(MODEL)])
        facts.append([replace(each, entry_id="") for each in await queue.settlements(MODEL)])
        letters = await queue.dead_letters(MODEL)
        facts.append([(each.job_id, each.reason, each.attempts, each.committed_tokens) for each in letters])
        for key in (*KEYS, *NEW_KEYS):
            job_id = f"org--tiny:0:{key}"
            try:
                status = await self.bench.queue.status(job_id)
            except QueueingError:
                continue
            facts.append(
                (
                    *(job_id, status.state, status.attempts, status.worker, status.committed_tokens),
                    *(status.cancel_reason, status.reason, status.error, status.priority),
                    status.first_token_ms > 0,
                    *(status.retry_of, [(each.outcome, each.committed_tokens) for each in status.history]),
                    await self.bench.read(job_id, START),
                    await self.bench.queue.result(job_id),
                )
            )
        return facts


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, min_size=5, max_size=40))
def test_a_server_and_memory_answer_alike(
    shared_redis: Callable[[str], RedisServer], script: list[Step]
) -> None:
    async def run() -> None:
        benches = [Bench("memory", None), Bench("valkey9", shared_redis("valkey9").url)]
        memory, server = map(Side, benches)
        raw = redis.Redis.from_url(benches[1].url or "", protocol=2)
        floors: dict[str, float] = {}
        try:
            for at, step in enumerate(script):
                expected, found = await memory.take(step), await server.take(step)
                assert expected == found, f"step {at}: {step}"
                floors = check_books(raw, "org--tiny:0", floors)
            assert await memory.everything() == await server.everything()
        finally:
            raw.close()
            for bench in benches:
                await bench.close()

    asyncio.run(run())
