"""Takes jobs from the queue: only as many as the engine can use soon, so that the rest stays free for others.

A job that already took workers with it (``isolate_after_attempts``) is claimed and run alone: jobs that
merely shared a worker with it would otherwise lose attempts to its crashes, and be given up with it.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from headway.queueing.claims import Claim
from headway.queueing.errors import QueueUnavailableError
from headway.queueing.events import JobError
from headway.queueing.messages import Priority
from headway.queueing.protocol import Queue, Wakeup
from headway.services.backoff import Backoff
from headway.services.claim_table import ClaimTable
from headway.services.claimed_job import ClaimedJob, Phase
from headway.services.engine_thread import EngineThread
from headway.services.logs import get_logger
from headway.services.translate import ModelSide, Prepared, Refusal, prepare

_log = get_logger("claim_loop")

WAIT_SECONDS: Final = 2.0
MOST_PER_CLAIM: Final = 8
"""Two idle workers that wake for the same burst share it; more per call would give it all to the first."""
KV_FULL: Final = 0.95
"""Past this share of used and promised blocks a new job would only wait here; elsewhere may be room."""
PEEK_SECONDS: Final = 0.02
"""A worker without room whose batch jobs can stand back looks so often for room: that changes by steps."""
EMPTY_PAUSE_SECONDS: Final = 0.02
"""After a wake-up that brought nothing, because another worker was faster."""


class ClaimLoop:
    """Claims, prepares in threads, and puts jobs into the engine. ``stop`` ends it for a drain."""

    def __init__(
        self,
        queue: Queue,
        table: ClaimTable,
        engine: EngineThread,
        model: ModelSide,
        *,
        worker_id: str,
        max_sequences: int,
        jobs_ahead: int,
        isolate_after_attempts: int,
    ) -> None:
        self._queue = queue
        self._table = table
        self._engine = engine
        self._model = model
        self._worker_id = worker_id
        self._max_sequences = max_sequences
        self._jobs_ahead = jobs_ahead
        """Claimed beyond the engine's places, so that one is refilled without a round trip."""
        self._isolate_after = isolate_after_attempts
        self._stopped = asyncio.Event()
        self._was_woken = False
        self._is_clearing = False
        # Two: one enormous prompt does not hold up the small ones behind it.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="headway-prepare")
        self._backoff = Backoff(0.1, 2.0)

    async def run(self) -> None:
        """Claim until stopped. Cancels that reach this worker are passed on as they come."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while not self._stopped.is_set():
                    self._table.changed.clear()
                    try:
                        await self._turn(tasks)
                        self._backoff.reset()
                    except QueueUnavailableError as error:
                        _log.warning("queue_unavailable", doing="claim", error=str(error))
                        await asyncio.sleep(self._backoff.next_seconds())
        finally:
            self._threads.shutdown(wait=False)

    def stop(self) -> None:
        """Claim nothing more; what is being prepared is still completed."""
        self._stopped.set()
        self._table.changed.set()

    async def _turn(self, tasks: asyncio.TaskGroup) -> None:
        room = self._room()
        beyond = 0 if room else self._room_beyond()
        claims = await self._claim(room or beyond, Priority.BATCH if room else Priority.STANDARD)
        for job in [self._table.accept(claim) for claim in claims]:
            if self._is_suspect(job) and len(self._table) > 1:
                self._table.hand_back(job)
                self._is_clearing = True
            elif job.phase is Phase.PREPARING:
                tasks.create_task(self._prepare(job))
        if not claims:
            await self._rest(for_work=Priority.BATCH if room else Priority.STANDARD if beyond else None)

    async def _claim(self, most: int, least: Priority) -> tuple[Claim, ...]:
        if not most:
            return ()
        return await self._queue.claim(self._model.name, self._worker_id, most, least=least)

    def _room(self) -> int:
        """How many more jobs are of use here now."""
        if self._is_clearing or any(map(self._is_suspect, self._table)):
            # For a suspect the worker is emptied first, then gets one job. If that is another one, because
            # another worker was faster, all goes on as usual.
            self._is_clearing = self._is_clearing and len(self._table) > 0
            return 0 if len(self._table) else 1
        load = self._engine.load
        promised = load.kv_blocks_used + load.extra.get("kv_blocks_reserved", 0.0)
        kv_is_full = promised >= KV_FULL * load.kv_blocks_total
        if kv_is_full or load.waiting >= self._jobs_ahead:
            return 0
        free = self._max_sequences + self._jobs_ahead - self._table.sequences
        return max(0, min(free, MOST_PER_CLAIM))

    def _room_beyond(self) -> int:
        """How many jobs of better classes to take in though there is no room: batch jobs stand back for them.

        No more than batch jobs have places here: full of others, it leaves what waits to whoever is free.
        """
        batch = self._table.batch_sequences
        if not self._can_stand_back or self._engine.load.waiting - batch >= self._jobs_ahead:
            return 0
        beyond = max(0, self._table.sequences - self._max_sequences - self._jobs_ahead)
        return max(0, min(MOST_PER_CLAIM, min(batch, self._max_sequences) - beyond))

    @property
    def _can_stand_back(self) -> bool:
        """Whether a batch job here would make way for a better one, however much room there is."""
        if self._is_clearing or any(map(self._is_suspect, self._table)):
            return False
        return (
            self._table.batch_sequences > 0
            and self._engine.load.kv_blocks_used < KV_FULL * self._engine.load.kv_blocks_total
        )

    def _is_suspect(self, job: ClaimedJob) -> bool:
        return job.claim.attempts >= self._isolate_after

    async def _prepare(self, job: ClaimedJob) -> None:
        outcome = await asyncio.get_running_loop().run_in_executor(
            self._threads, _prepare_safely, job.claim, self._model, job.received_seconds
        )
        self._table.prepared(job, outcome)

    async def _rest(self, *, for_work: Priority | None) -> None:
        """Sleep until there is something to do: work of this class or a better one; room where it lacks."""
        if for_work is not None and self._was_woken:
            self._was_woken = False
            await asyncio.sleep(EMPTY_PAUSE_SECONDS)
            return
        seconds = PEEK_SECONDS if for_work is None and self._can_stand_back else WAIT_SECONDS
        waiting = asyncio.create_task(
            self._queue.wait(self._model.name, self._worker_id, for_work=for_work, timeout_seconds=seconds)
        )
        has_room = for_work is Priority.BATCH
        changed = asyncio.create_task((self._stopped if has_room else self._table.changed).wait())
        try:
            await asyncio.wait((waiting, changed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            waiting.cancel()  # no effect on one that is done
        await asyncio.wait((waiting,))
        if not waiting.cancelled():
            self._wake(waiting.result())

    def _wake(self, wakeup: Wakeup) -> None:
        self._was_woken = wakeup.may_have_work
        for job_id in wakeup.cancelled:
            self._table.cancel(job_id)


def _prepare_safely(claim: Claim, model: ModelSide, received_seconds: float) -> Prepared | Refusal:
    """Prepare in a thread; whatever a job manages to trip over there is the end of that job only."""
    try:
        return prepare(claim, model, received_seconds)
    except BaseException as error:  # a panic in the tokenizer's Rust code is not an Exception
        _log.exception("prepare_failed", job=claim.job_id)
        problem = JobError("internal_error", f"this job could not be prepared ({type(error).__name__})")
        return Refusal(problem, dead_letter="internal_error")
