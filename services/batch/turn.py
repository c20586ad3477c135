"""One turn at one batch: from wherever it is towards its end, for as long as this process has the turn.

    validating ─► in_progress ─► finalizing ─► completed
        │              │ cancel: cancelling ──► cancelled
        └► failed      └ time is over ────────► expired

A process may be killed anywhere. What it has committed (parts, facts of the record) stands; everything else
is found again in the queue under the same keys, or made again under new paths.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import closing, suppress

import structlog

from headway.queueing.batch import Batch, BatchFault, Checked, EndState, NewBatch
from headway.queueing.errors import QueueUnavailableError, UnreadableRecordError
from headway.services.batch.checking import InputCheck
from headway.services.batch.ending import Ending
from headway.services.batch.orphaned_jobs import cancel_jobs
from headway.services.batch.pace import Pace
from headway.services.batch.storage import OpenFile
from headway.services.batch.work import Surroundings, Work

_log = structlog.stdlib.get_logger("headway.batch")


def give_way(batch_id: str) -> str:
    """What is held while the turn at this batch is to end, for another tenant's batch."""
    return f"yield:{batch_id}"


async def take_turn(around: Surroundings, batch_id: str) -> bool:
    """Work on a batch if nobody else does; whether it has come to its end. Raises OSError, QueueingError."""
    holder = secrets.token_hex(8)
    what, seconds = f"run:{batch_id}", around.settings.turn_seconds
    if not await around.store.take_turn(what, holder, seconds):
        return False
    await around.store.end_turn(give_way(batch_id), "")  # it was meant for an earlier turn
    turn = _Turn(around, batch_id)
    keeping = asyncio.create_task(_keep(around, what, holder, seconds, turn))
    try:
        return await turn.run()
    except UnreadableRecordError as error:
        await turn.give_up(error)
        return True
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping
        with suppress(QueueUnavailableError):
            await around.store.end_turn(what, holder)


async def _keep(around: Surroundings, what: str, holder: str, seconds: float, turn: _Turn) -> None:
    """Keep the turn; one that is lost ends, so that two do not do the same work for long, and so does one
    that is to give way."""
    while True:
        await asyncio.sleep(seconds / 4)
        with suppress(QueueUnavailableError):
            if not await around.store.keep_turn(what, holder, seconds):
                turn.is_lost = True
                return
            turn.gives_way = await around.store.has_turn(give_way(turn.batch_id))


class _Turn:
    """The work of one turn."""

    def __init__(self, around: Surroundings, batch_id: str) -> None:
        self._around = around
        self._store = around.store
        self._settings = around.settings
        self.batch_id = batch_id
        self._until = around.clock() + around.settings.slice_seconds
        self.is_lost = False
        self.gives_way = False

    @property
    def _is_over(self) -> bool:
        return self.is_lost or self.gives_way or self._around.stops() or self._around.clock() > self._until

    async def run(self) -> bool:
        """Whether the batch has ended, and everything that follows its end is done."""
        batch = await self._store.batch(self.batch_id)
        if batch is None:
            await self._store.close_batch(self.batch_id)
            return True
        ending = self._ending()
        if batch.outcome is None and batch.checked is None:
            await self._check(batch.asked, ending)
            batch = await self._store.batch(self.batch_id) or batch
        if batch.outcome is None and batch.checked is not None:
            state = await self._work(batch, batch.checked)
            if state is None:
                return False
            await ending.finish(batch.asked, batch.checked, state)
        return await ending.close(self.batch_id)

    async def give_up(self, error: UnreadableRecordError) -> None:
        """End a batch for which no turn can do anything: it would be in line for good.

        Where its own record can be read, its tenant is told; else only its place in the line goes.
        """
        reason = str(error)
        batch = next(iter(await self._store.batches([self.batch_id])), None)
        if batch is None:
            await self._store.close_batch(self.batch_id)
        else:
            await cancel_jobs(self._around.queue, batch.asked, f"record_unreadable: {reason}")
            ending = self._ending()
            await ending.fail(batch.asked, BatchFault("record_unreadable", reason))
            await ending.close(self.batch_id)
        _log.error("batch is given up: a record cannot be read", batch=self.batch_id, error=reason)

    def _ending(self) -> Ending:
        return Ending(self._around.queue, self._around.storage, self._settings, self._around.metrics.ended)

    async def _check(self, asked: NewBatch, ending: Ending) -> None:
        """The first pass over the input."""
        check = InputCheck(asked.endpoint, self._settings.part_lines)
        opened = await self._input(asked)
        if opened is None:
            await ending.fail(asked, ending.input_is_gone(asked))
            return
        with closing(opened):
            await asyncio.to_thread(check.read, opened)
        if check.faults:
            await ending.fail(asked, *check.faults)
            return
        checked = check.result(await self._store.now_ms())
        await self._store.mark_checked(asked.batch_id, checked)
        _log.info("batch begins", batch=asked.batch_id, tenant=asked.tenant, lines=checked.lines)

    async def _work(self, batch: Batch, checked: Checked) -> EndState | None:
        """Work on the lines; how the batch is to end, or None when this turn is over before that."""
        opened = await self._input(batch.asked)
        if opened is None:
            return await self._fail(batch.asked)
        with closing(opened):
            work = Work(self._around, batch.asked, checked, opened)
            await work.begin()
            try:
                return await self._until_done(work)
            except OSError:
                if await self._store.file(batch.asked.input_file_id) is not None:
                    raise  # it is there: read on later
                await work.keep_answers()
                return await self._fail(batch.asked)
            finally:
                work.close()

    async def _fail(self, asked: NewBatch) -> EndState:
        """The input is gone: nobody waits for what is still in the queue."""
        count = await cancel_jobs(self._around.queue, asked, "input_file_missing: the batch ended")
        _log.info("batch's input is gone", batch=asked.batch_id, cancelled_jobs=count)
        return "failed"

    async def _until_done(self, work: Work) -> EndState | None:
        pace = Pace(self._settings.shortest_look_seconds, self._settings.longest_look_seconds)
        next_look = 0.0
        while not self._is_over:
            if self._around.clock() >= next_look:
                state = await work.end_asked_for()
                if state is not None:
                    await work.end(state)
                    return state
                next_look = self._around.clock() + 1.0
            try:
                done = await work.advance()
            except QueueUnavailableError as error:
                await asyncio.sleep(min(error.retry_after_seconds, 2.0))
                continue
            if work.is_done:
                return "completed"
            await asyncio.sleep(pace.after(done, work.in_flight))
        return None

    async def _input(self, asked: NewBatch) -> OpenFile | None:
        """The input, open; None: somebody has deleted it."""
        file = await self._store.file(asked.input_file_id)
        if file is None:
            return None
        try:
            return await asyncio.to_thread(self._around.storage.open, file.path)
        except FileNotFoundError:
            return None
