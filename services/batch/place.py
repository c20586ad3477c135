"""Whose files lie in a place: each queue that uses it leaves its name there, once.

The name is also kept at the queue's server. So a server that was restored empty is another queue, and so is
that of another deployment which was given the same folder: neither knows what of the files is the other's.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

from headway.queueing.batch_store import BatchStore
from headway.services.batch.storage import Storage

FOLDER: Final = "queues"
_NAME: Final = re.compile(r"queue-[0-9a-f]{24}")


async def enter(store: BatchStore, storage: Storage) -> tuple[str, ...]:
    """Leave the queue's name in the place; the names of other queues there. Raises OSError, QueueingError."""
    mine = await store.queue_id()
    there = await asyncio.to_thread(storage.names, FOLDER)
    names = {name for name, _ in there if _NAME.fullmatch(name)}
    if mine not in names:
        await asyncio.to_thread(storage.write, f"{FOLDER}/{mine}", [f"{mine}\n".encode()])
    return tuple(sorted(names - {mine}))
