"""A fleet on a virtual clock: workers with slots claim from one queue, serve, die and are replaced."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, Final

from headway.queueing.claims import Claim, Finish
from headway.queueing.events import ChoiceEnd, Cursor, EndEvent, EndReason, JobResult, Usage
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.settings import QueueSettings

MODEL: Final = "tiny"
TOKENS_PER_SECOND: Final = 50.0
"""Of one slot."""
LEASE_SECONDS: Final = 3.0
REPLACED_SECONDS: Final = 2.0

Action = Callable[[], Coroutine[Any, Any, None]]


@dataclass(eq=False)
class SimWorker:
    """A worker: what it holds, by job."""

    name: str
    slots: int
    held: dict[str, Claim] = field(default_factory=dict[str, Claim])
    is_dead: bool = False


@dataclass(frozen=True)
class Served:
    """A job that was started; times are virtual seconds."""

    tenant: str
    created: float
    started: float


class FleetWorld:
    """Workers around a MemoryQueue. Nothing waits for real time; equal seeds, equal runs."""

    def __init__(self, workers: int, slots: int, seed: int = 0) -> None:
        self.now = 1_700_000_000.0
        self.rng = Random(seed)
        self.queue = MemoryQueue(
            QueueSettings(lease_seconds=LEASE_SECONDS, max_attempts=1000),
            clock=lambda: self.now,
            rng=Random(seed),
        )
        self.started: list[Served] = []
        self.tokens: dict[str, float] = {}
        """Served in answers that ended, by tenant."""
        self.kills = 0
        self._events: list[tuple[float, int, Action]] = []
        self._numbers = count()
        self._seen: set[str] = set()
        self.workers: list[SimWorker] = []
        for _ in range(workers):
            self._join(slots)
        self.after(LEASE_SECONDS / 3, self._renew)
        self.after(1.5, self._reap)

    def after(self, seconds: float, action: Action) -> None:
        """Do something later."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), action))

    async def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let virtual time pass."""
        end = self.now + seconds
        await self._fill()
        while self._events and self._events[0][0] <= end and not until():
            self.now, _, action = heapq.heappop(self._events)
            await action()
            await self._fill()
        self.now = max(self.now, end) if not until() else self.now

    async def submit(self, tenant: str, tokens: int, max_tokens: int | None = None) -> None:
        """One job that will answer so many tokens, and allows itself ``max_tokens``."""
        body = {
            "model": MODEL,
            "prompt": "x",
            "tenant": tenant,
            "sampling": {"max_tokens": max_tokens or tokens},
            "metadata": {"answers": str(tokens)},
        }
        await self.queue.submit_body(MODEL, json.dumps(body).encode())

    async def kill_one(self) -> None:
        """A worker is gone without a word, and another one starts a little later."""
        alive = [worker for worker in self.workers if not worker.is_dead]
        worker = self.rng.choice(alive)
        worker.is_dead = True
        self.kills += 1

        async def replace() -> None:
            self._join(worker.slots)

        self.after(REPLACED_SECONDS, replace)

    def _join(self, slots: int) -> None:
        self.workers.append(SimWorker(f"w{len(self.workers)}", slots))

    async def _fill(self) -> None:
        for worker in self.workers:
            free = worker.slots - len(worker.held)
            if worker.is_dead or free <= 0:
                continue
            for claim in await self.queue.claim(MODEL, worker.name, free):
                self._start(worker, claim)

    def _start(self, worker: SimWorker, claim: Claim) -> None:
        job = json.loads(claim.body)
        worker.held[claim.job_id] = claim
        if claim.job_id not in self._seen:
            self._seen.add(claim.job_id)
            self.started.append(Served(job["tenant"], claim.created_ms / 1000, self.now))
        answer = int(job["metadata"]["answers"])

        async def end() -> None:
            await self._end(worker, claim, job["tenant"], answer)

        self.after(answer / TOKENS_PER_SECOND, end)

    async def _end(self, worker: SimWorker, claim: Claim, tenant: str, answer: int) -> None:
        if worker.is_dead or worker.held.get(claim.job_id) is not claim:
            return
        del worker.held[claim.job_id]
        stop, usage = EndReason.STOP, Usage(1, answer)
        event = EndEvent(Cursor(answer, 1), stop, (ChoiceEnd(stop),), usage)
        result = JobResult(claim.job_id, stop, (), usage)
        await self.queue.finish([Finish(claim.job_id, claim.token, event, result)])
        self.tokens[tenant] = self.tokens.get(tenant, 0) + answer

    async def _renew(self) -> None:
        for worker in self.workers:
            if not worker.is_dead and worker.held:
                await self.queue.renew([(each.job_id, each.token) for each in worker.held.values()])
        self.after(LEASE_SECONDS / 3, self._renew)

    async def _reap(self) -> None:
        await self.queue.reap(MODEL)
        self.after(1.5, self._reap)
