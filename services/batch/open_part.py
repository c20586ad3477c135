"""A part of a batch whose lines are being worked on: its results so far, and their one commit."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from tempfile import SpooledTemporaryFile
from typing import Final

from headway.queueing.batch import Part, Tally
from headway.queueing.batch_store import BatchStore
from headway.services.batch.answered import Answered
from headway.services.batch.line import Line
from headway.services.batch.storage import PIECE_BYTES, Storage

IN_MEMORY_BYTES: Final = 1 << 20
"""Results of a part beyond this go to a temporary file."""


class OpenPart:
    """Takes the results of its lines; whole, they become two files and one committed record."""

    def __init__(self, batch_id: str, number: int, lines: Iterator[Line]) -> None:
        self.number = number
        self._batch_id = batch_id
        self._lines = lines
        self._missing = 0
        self._is_read = False
        self._output = SpooledTemporaryFile[bytes](max_size=IN_MEMORY_BYTES)  # closed by close
        self._errors = SpooledTemporaryFile[bytes](max_size=IN_MEMORY_BYTES)  # the same
        self.tally = Tally()

    def next_line(self) -> Line | None:
        """The next line to work on; None: it has no more."""
        line = next(self._lines, None)
        if line is None:
            self._is_read = True
        else:
            self._missing += 1
        return line

    @property
    def is_read(self) -> bool:
        """Whether all of its lines are being worked on."""
        return self._is_read

    @property
    def is_done(self) -> bool:
        """Whether all of its lines are done."""
        return self._is_read and not self._missing

    def take(self, done: Answered) -> None:
        """Keep the result of one of its lines."""
        (self._errors if done.is_error else self._output).write(done.text)
        self.tally += done.tally
        self._missing -= 1

    async def commit(self, storage: Storage, store: BatchStore) -> bool:
        """Write its files, then its record; False: somebody else committed this part before. Raises OSError.

        Whoever dies in between leaves files that nobody knows of, and the part to be done again.
        """
        token = secrets.token_hex(4)
        output = await asyncio.to_thread(self._written, storage, self._output, f"output-{token}")
        errors = await asyncio.to_thread(self._written, storage, self._errors, f"errors-{token}")
        is_ours = await store.commit_part(self._batch_id, self.number, Part(self.tally, output, errors))
        if not is_ours:
            for path in filter(None, (output, errors)):
                await asyncio.to_thread(storage.remove, path)
        return is_ours

    def close(self) -> None:
        """Let go of temporary files."""
        self._output.close()
        self._errors.close()

    def _written(self, storage: Storage, spool: SpooledTemporaryFile[bytes], name: str) -> str:
        if not spool.tell():
            return ""
        spool.seek(0)
        path = f"{work_folder(self._batch_id)}/{self.number:05}-{name}.jsonl"
        storage.write(path, iter(lambda: spool.read(PIECE_BYTES), b""))
        return path


def work_folder(batch_id: str) -> str:
    """Where a batch's parts lie until its end."""
    return f"work/{batch_id}"
