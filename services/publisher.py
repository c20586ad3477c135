"""Brings the engine's outputs to the queue: one write at a time, whatever came meanwhile goes in the next.

The publisher never makes the engine wait. With many streams it lets the tokens of a short step wait for those
of the next one (decision 0031). When the queue is away it repeats the same write until it is
known to have happened or the claim is lost; the engine holds the jobs that run too far ahead by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from headway.queueing.claims import Emit, Fenced, Finish
from headway.queueing.errors import QueueUnavailableError
from headway.queueing.events import TokenEvent
from headway.queueing.protocol import Queue
from headway.services.backoff import Backoff
from headway.services.claim_table import ClaimTable
from headway.services.claimed_job import ClaimedJob, Phase
from headway.services.engine_thread import EngineThread
from headway.services.logs import get_logger
from headway.services.metrics import WorkerMetrics

if TYPE_CHECKING:
    from headway.services.job_traces import JobTraces  # needs OpenTelemetry

_log = get_logger("publisher")

FIRST_RETRY_SECONDS: Final = 0.05
LONGEST_RETRY_SECONDS: Final = 1.0
"""A server that comes back is noticed within a second; a consumer is waiting."""

SECONDS_PER_STREAM: Final = 0.00075
LONGEST_SECONDS: Final = 0.03
"""A write costs worker, server and readers nearly as much for one token of each stream as for two. So the
more streams, the longer tokens wait for the next step's: with 32 of them writes are 24 ms apart at least,
with one there is a write for each step."""


class Publisher:
    """The only writer of token entries, ends and releases of this worker."""

    def __init__(
        self,
        queue: Queue,
        table: ClaimTable,
        engine: EngineThread,
        metrics: WorkerMetrics,
        clock: Callable[[], float],
        *,
        traces: JobTraces | None = None,
    ) -> None:
        self._queue = queue
        self._table = table
        self._engine = engine
        self._metrics = metrics
        self._clock = clock
        self._traces = traces
        self._backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self._last_write = -1.0
        """When the last one began, on the clock."""

    async def run(self) -> None:
        """Write whenever there is something to write; ends only by being cancelled."""
        while True:
            await self._table.to_write.wait()
            self._table.to_write.clear()
            self._table.route()
            await self._hold()
            while await self._write():
                self._table.route()
                await self._hold()

    async def _hold(self) -> None:
        """Wait for the next step's tokens if the last write was just now, but not for ever."""
        while (seconds := self._may_wait()) > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._table.to_write.wait()
            except TimeoutError:
                return
            self._table.to_write.clear()
            self._table.route()

    def _may_wait(self) -> float:
        """Seconds that all there is to write may wait; 0 where somebody waits for a first token or an end."""
        streams = 0
        for job in self._table:
            if job.phase in {Phase.ENDED, Phase.STOPPED}:
                return 0.0
            if job.answer.has_unwritten:
                if job.last_written_seconds is None:
                    return 0.0
                streams += 1
        apart = min(LONGEST_SECONDS, streams * SECONDS_PER_STREAM)
        passed = self._clock() - self._last_write
        return 0.0 if passed >= apart else 2 * apart - passed

    async def _write(self) -> bool:
        """One round: all new entries, ends and releases; False when there was nothing to write."""
        emitting: list[ClaimedJob] = []
        ending: list[ClaimedJob] = []
        leaving: list[ClaimedJob] = []
        for job in self._table:
            if job.phase is Phase.ENDED:
                ending.append(job)
            elif job.answer.has_unwritten:
                # A job to be handed back first gets its last tokens written: its next owner goes on there.
                emitting.append(job)
            elif job.phase is Phase.STOPPED:
                leaving.append(job)
        if not (emitting or ending or leaving):
            return False
        started = self._last_write = self._clock()
        if ending or leaving:
            # Different jobs, so their order does not matter; together they cost one round trip of time.
            written = all(
                await asyncio.gather(self._emit(emitting), self._finish(ending), self._release(leaving))
            )
        else:  # most writes: three tasks would cost more than the rest of it
            written = await self._emit(emitting)
        if written:
            self._backoff.reset()
            self._metrics.published(self._clock() - started)
        else:
            self._metrics.publish_failed()
            await asyncio.sleep(self._backoff.next_seconds())
        return True

    async def _emit(self, jobs: Sequence[ClaimedJob]) -> bool:
        if not jobs:
            return True
        emits = [
            Emit(job.job_id, job.claim.token, job.answer.seal(), job.answer.written_entries) for job in jobs
        ]
        waited_since = [job.waits_since_seconds for job in jobs]
        for job in jobs:  # what comes from here on is in the next write
            job.waits_since_seconds = None
        outcomes = await self._ask("emit", lambda: self._queue.emit(emits))
        if outcomes is None:
            for job, since in zip(jobs, waited_since, strict=True):
                job.waits_since_seconds = since or job.waits_since_seconds
            return False
        acknowledged: list[tuple[str, int]] = []
        now = self._clock()
        for job, emit, outcome, since in zip(jobs, emits, outcomes, waited_since, strict=True):
            if outcome is Fenced.LOST:
                self._metrics.suppressed(sum([len(entry.token_ids) for entry in emit.entries]))
                self._table.lose(job)
                continue
            if since is not None:
                self._metrics.wrote_after(now - since)
            if tokens := self._confirm(job, emit.entries, now):
                acknowledged.append((emit.job_id, tokens))
            if outcome is Fenced.CANCELLED:
                self._table.cancel(job.job_id)
        self._engine.acknowledge(acknowledged)
        return True

    async def _finish(self, jobs: Sequence[ClaimedJob]) -> bool:
        if not jobs:
            return True
        finishes = [job.finish() for job in jobs]
        outcomes = await self._ask("finish", lambda: self._queue.finish(finishes))
        if outcomes is None:
            return False
        for job, finish, outcome in zip(jobs, finishes, outcomes, strict=True):
            if outcome is Fenced.LOST:
                self._table.lose(job)
            else:
                self._close(job, finish)
        return True

    async def _release(self, jobs: Sequence[ClaimedJob]) -> bool:
        if not jobs:
            return True
        outcomes = await self._ask("release", lambda: self._queue.release([job.pair for job in jobs]))
        if outcomes is None:
            return False
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome is Fenced.LOST:
                self._table.lose(job)
            else:
                self._metrics.handed_back()
                if self._traces is not None:
                    self._traces.handed_back(job, self._metrics.journeys_of(job))
                job.log.info("job_handed_back", committed_tokens=job.answer.completion_tokens)
                self._table.close(job)
        return True

    async def _ask(
        self, what: str, call: Callable[[], Awaitable[tuple[Fenced, ...]]]
    ) -> tuple[Fenced, ...] | None:
        """The call's answer, or None when the queue is away: then it may or may not have happened."""
        try:
            return await call()
        except QueueUnavailableError as error:
            _log.warning("queue_unavailable", doing=what, error=str(error))
            return None

    def _confirm(self, job: ClaimedJob, entries: Sequence[TokenEvent], now: float) -> int:
        """Note that these entries are in the queue since ``now``; returns their tokens."""
        tokens = sum([len(entry.token_ids) for entry in entries])
        if tokens:
            last = job.last_written_seconds
            if last is not None:
                # Choices advance side by side: the time per token is that of each of them.
                choices = 1 if len(entries) == 1 else len({entry.choice for entry in entries})
                self._metrics.wrote_next_tokens(tokens, seconds=(now - last) * choices)
            elif job.answer.resumed_tokens == 0:
                ttft = now - job.received_seconds + job.age_seconds_at_claim
                self._metrics.wrote_first_tokens(tokens, seconds=ttft)
                if job.prepared is not None:
                    self._metrics.jobs.first_token(job.prepared.job, ttft)
                job.first_written_seconds = now
            else:
                self._metrics.wrote_tokens(tokens)
            job.last_written_seconds = now
        job.answer.confirm(len(entries))
        return tokens

    def _close(self, job: ClaimedJob, finish: Finish) -> None:
        self._confirm(job, finish.entries, self._clock())
        seconds = self._clock() - job.received_seconds + job.age_seconds_at_claim
        self._metrics.finished(finish.end.reason, seconds=seconds)
        journeys = self._metrics.journeys_of(job)
        self._metrics.jobs.ended(job, finish.end.reason, journeys)
        if self._traces is not None:
            self._traces.ended(job, finish.end.reason, journeys)
        job.log.info(
            "job_finished",
            reason=finish.end.reason.value,
            code=finish.end.error.code if finish.end.error else None,
            prompt_tokens=finish.end.usage.prompt_tokens,
            completion_tokens=finish.end.usage.completion_tokens,
            seconds=round(seconds, 3),
        )
        self._table.close(job)
