"""The end of a batch: its files, its outcome, and what follows."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256

import structlog

from headway.queueing.batch import BatchFault, Checked, EndState, NewBatch, Outcome, Tally, total
from headway.queueing.protocol import Queue
from headway.queueing.stored_file import StoredFile
from headway.services.batch.open_part import work_folder
from headway.services.batch.settings import StepSettings
from headway.services.batch.storage import Storage
from headway.services.batch.webhook_event import tell

_log = structlog.stdlib.get_logger("headway.batch")


class Ending:
    """Ends batches. Each step may be repeated, by anybody, after a crash in the middle of it."""

    def __init__(
        self, queue: Queue, storage: Storage, settings: StepSettings, ended: Callable[[EndState], None]
    ) -> None:
        """``ended`` hears of each batch that ends here."""
        self._store = queue.batch_store
        self._webhooks = queue.webhook_store
        self._storage = storage
        self._settings = settings
        self._ended = ended

    @staticmethod
    def input_is_gone(asked: NewBatch, lines: int = 0, tally: Tally | None = None) -> BatchFault:
        """Why a batch without its input fails, and how much of it is kept."""
        done = 0 if tally is None else tally.completed + tally.failed
        kept = f"; the results of {done} of its {lines} lines are kept" if done else ""
        return BatchFault(
            "input_file_missing", f"the input file {asked.input_file_id} was deleted or has expired{kept}"
        )

    async def fail(self, asked: NewBatch, *faults: BatchFault) -> None:
        """The input cannot be worked through."""
        outcome = Outcome("failed", await self._store.now_ms(), faults=faults)
        if await self._store.end_batch(asked.batch_id, outcome):
            self._ended("failed")
            _log.info("batch failed", batch=asked.batch_id, fault=faults[0].message)

    async def finish(self, asked: NewBatch, checked: Checked, state: EndState) -> None:
        """Put the committed parts together, and say how the batch ended."""
        await self._store.mark_finalizing(asked.batch_id)
        found = await self._store.parts(asked.batch_id)
        parts = [found[number] for number in sorted(found)]
        if state != "failed" and len(parts) < len(checked.offsets):
            return  # somebody else has ended it meanwhile, and tidied up
        output = await self._join(asked, "output", [part.output for part in parts])
        errors = await self._join(asked, "errors", [part.errors for part in parts])
        tally = total(part.tally for part in parts)
        outcome = Outcome(
            state=state,
            at_ms=await self._store.now_ms(),
            tally=tally,
            output_file_id=output,
            error_file_id=errors,
            faults=(self.input_is_gone(asked, checked.lines, tally),) if state == "failed" else (),
        )
        if await self._store.end_batch(asked.batch_id, outcome):
            self._ended(state)
            counts = {"completed": outcome.tally.completed, "failed": outcome.tally.failed}
            _log.info("batch ended", batch=asked.batch_id, state=state, **counts)

    async def close(self, batch_id: str) -> bool:
        """Tell the webhooks, tidy up, and take the batch off the list; True once all of that is done."""
        batch = await self._store.batch(batch_id)
        if batch is None or batch.outcome is None:
            return False
        if not batch.is_told:
            outcome = batch.outcome
            await tell(self._webhooks, batch.asked.tenant, f"batch.{outcome.state}", batch_id, outcome.at_ms)
            await self._store.mark_told(batch_id)
        await asyncio.to_thread(self._storage.remove_all, work_folder(batch_id))
        await self._store.drop_parts(batch_id)
        await self._store.close_batch(batch_id)
        return True

    async def _join(self, asked: NewBatch, kind: str, paths: Sequence[str]) -> str | None:
        """One file of these, in order; its id, or None if they are all empty.

        The id is made of the batch's: whoever repeats this makes no second file, only its bytes anew.
        """
        paths = [path for path in paths if path]
        if not paths:
            return None
        file_id = f"file-{sha256(f'{asked.batch_id}:{kind}'.encode()).hexdigest()[:24]}"
        path = f"files/{file_id}.{secrets.token_hex(4)}"
        size = await asyncio.to_thread(self._storage.write, path, self._pieces(paths))
        now_ms = await self._store.now_ms()
        keep = asked.output_keep_seconds or self._settings.file_keep_seconds
        name = f"{asked.batch_id}_{kind}.jsonl"
        file = StoredFile(
            file_id, asked.tenant, name, "batch_output", size, now_ms, now_ms + int(keep * 1000), path
        )
        await self._store.add_file(file)
        return file_id

    def _pieces(self, paths: Sequence[str]) -> Iterator[bytes]:
        for path in paths:
            yield from self._storage.pieces(path)
