"""What tenants used, day by day, kept for good: the queue keeps a quarter of it, an account needs longer."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import orjson
import structlog

from headway.queueing.day_usage import day_of
from headway.queueing.protocol import Queue
from headway.services.batch.storage import Storage

_log = structlog.stdlib.get_logger("headway.batch")

DAYS_BACK: Final = 7
"""A service that did not run for a week still writes every day."""
FOLDER: Final = "usage"


async def write_usage(queue: Queue, storage: Storage) -> None:
    """A file ``usage/<day>.jsonl`` for each day that is over and has none: a line by tenant and model.

    A day's numbers are final two hours after its end: jobs that ended on it are counted when they end.
    """
    written = {name for name, _ in await asyncio.to_thread(storage.names, FOLDER)}
    last = day_of(await queue.batch_store.now_ms() - 2 * 3_600_000)
    for back in range(1, DAYS_BACK + 1):
        day = last - timedelta(days=back)
        name = f"{day.isoformat()}.jsonl"
        if name in written:
            continue
        rows = [row for model in await queue.models() for row in await queue.usage(model, [day])]
        if not rows:
            continue
        lines = [orjson.dumps(row.shown()) + b"\n" for row in sorted(rows)]
        await asyncio.to_thread(storage.publish, f"{FOLDER}/{name}", lines)
        _log.info("usage written", day=day.isoformat(), rows=len(rows))
