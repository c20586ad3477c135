"""What is kept no longer: expired files, batches that ended long ago, and what killed processes left."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Final

import structlog

from headway.queueing.batch_store import BatchStore
from headway.queueing.protocol import Queue
from headway.services.batch.open_part import work_folder
from headway.services.batch.place import FOLDER, enter
from headway.services.batch.storage import Storage

_log = structlog.stdlib.get_logger("headway.batch")

AT_ONCE: Final = 500
MOST_NAMED: Final = 5
ORPHAN_SECONDS: Final = 86_400.0
"""A file that nobody knows of may still be under way for this long."""
_OUR_FILE: Final = re.compile(r"file-[A-Za-z0-9]+(\.[0-9a-f]+)?")
_OUR_WORK: Final = re.compile(r"batch_[A-Za-z0-9]+")
"""Names that gateway and batch service give. Whatever else lies in the place is somebody's own."""


@dataclass(frozen=True, slots=True)
class Swept:
    """How much of what was removed."""

    expired_files: int = 0
    forgotten_batches: int = 0
    orphans: int = 0

    @classmethod
    def kinds(cls) -> tuple[str, ...]:
        """What there is to remove."""
        return tuple(each.name for each in fields(cls))


async def sweep(queue: Queue, storage: Storage, keep_seconds: float) -> Swept:
    """Remove it. A file's bytes go before its record, so that a crash in between leaves nothing unknown."""
    store = queue.batch_store
    expired = 0
    while files := await store.expired_files(AT_ONCE):
        for file in files:
            await asyncio.to_thread(storage.remove, file.path)
            await store.remove_file(file)
        expired += len(files)
    now_ms = await store.now_ms()
    forgotten = await _forget(store, storage, now_ms - int(keep_seconds * 1000))
    orphans = 0
    if others := await enter(store, storage):
        _log.warning(
            "files that no record points to are kept: another queue's name is here",
            **_advice(storage, others),
        )
    else:
        orphans = await _remove_orphans(store, storage, now_ms / 1000 - ORPHAN_SECONDS)
    swept = Swept(expired, forgotten, orphans)
    if swept != Swept():
        _log.info("tidied up", **asdict(swept))
    return swept


def _advice(storage: Storage, others: Sequence[str]) -> dict[str, object]:
    """What an operator needs to know of a place that other queues use, or used."""
    return {
        "files": storage.url,
        "other_queues": list(others[:MOST_NAMED]),
        "hint": "give each queue a place of its own (--files / HEADWAY_FILES); where the other queue is gone "
        f"for good and its files may go, remove its name from {FOLDER}/ there",
    }


async def _forget(store: BatchStore, storage: Storage, before_ms: int) -> int:
    """Forget batches that ended before a time."""
    count = kept = 0
    while batch_ids := await store.batches_until(before_ms, AT_ONCE, after=kept):
        for batch_id in batch_ids:
            batch = next(iter(await store.batches([batch_id])), None)
            if batch is None or batch.outcome is None or batch.outcome.at_ms >= before_ms:
                kept += 1
                continue
            await asyncio.to_thread(storage.remove_all, work_folder(batch_id))
            await store.forget_batch(batch.asked)
            count += 1
    return count


async def _remove_orphans(store: BatchStore, storage: Storage, before_unix: float) -> int:
    """Remove files that are old and that no record points to."""
    count = 0
    for name, written in await asyncio.to_thread(storage.names, "files"):
        if not 0 < written < before_unix or not _OUR_FILE.fullmatch(name):
            continue
        known = await store.files([name.partition(".")[0]])
        if not known and await store.has_file_record(name.partition(".")[0]):
            continue  # it has expired just now, or cannot be read by this version
        if not known or known[0].path != f"files/{name}":
            await asyncio.to_thread(storage.remove, f"files/{name}")
            count += 1
    for name, written in await asyncio.to_thread(storage.names, "work"):
        with suppress(OSError):
            # An object store has no folders, and so no dates of them: its newest file's counts.
            inside = [] if written else await asyncio.to_thread(storage.names, f"work/{name}")
            written = max((each for _, each in inside), default=written)  # noqa: PLW2901 # the same date
            is_old = 0 < written < before_unix and _OUR_WORK.fullmatch(name) is not None
            if is_old and name not in await store.open_batches():
                await asyncio.to_thread(storage.remove_all, f"work/{name}")
                count += 1
    return count
