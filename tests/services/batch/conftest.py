"""A batch service over an in-memory queue, a folder and a scripted worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.gateway.conftest import Rig
from tests.gateway.scripted_worker import Script, ScriptedWorker

from headway.queueing.batch import Batch, NewBatch
from headway.queueing.claims import Claim
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.protocol import Queue
from headway.queueing.stored_file import StoredFile
from headway.services.batch.settings import StepSettings
from headway.services.batch.storage import Storage
from headway.services.batch.turn import take_turn
from headway.services.batch.work import Surroundings

ENDPOINT = "/v1/chat/completions"
SMALL = StepSettings(
    most_in_flight=8, part_lines=4, open_parts=3, longest_look_seconds=0.05, cancel_seconds=2.0
)


def chat_line(custom_id: str, text: str = "hi", **body: object) -> dict[str, object]:
    """A line that asks the scripted worker."""
    asked = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 8} | body
    return {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": asked}


def jsonl(*lines: dict[str, object]) -> bytes:
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)


Lines = dict[str, dict[str, Any]]
"""By custom id."""


@dataclass(slots=True)
class Service:
    """The batch service of a test."""

    queue: Queue
    storage: Storage
    settings: StepSettings = SMALL
    stops: Callable[[], bool] = field(default=lambda: False)

    @property
    def around(self) -> Surroundings:
        return Surroundings(self.queue, self.storage, self.settings, time.monotonic, self.stops)

    async def post(
        self,
        *lines: dict[str, object],
        seconds: float = 3600,
        endpoint: str = ENDPOINT,
        raw: bytes | None = None,
        tenant: str = "acme",
    ) -> str:
        """A batch of these lines, as the gateway writes it down."""
        store = self.queue.batch_store
        content = jsonl(*lines) if raw is None else raw
        path = f"files/file-{time.time_ns():024x}"
        self.storage.write(path, [content])
        now_ms = await store.now_ms()
        file_id = path.removeprefix("files/")
        file = StoredFile(file_id, tenant, "in.jsonl", "batch", len(content), now_ms, now_ms + 10**9, path)
        await store.add_file(file)
        batch_id = f"batch_{time.time_ns():024x}"
        await store.add_batch(
            NewBatch(batch_id, tenant, file_id, endpoint, "24h", now_ms, now_ms + int(seconds * 1000))
        )
        return batch_id

    async def turn(self, batch_id: str, **changes: object) -> bool:
        around = replace(self.around, **changes)  # type: ignore[arg-type]  # the test names real fields
        return await take_turn(around, batch_id)

    async def batch(self, batch_id: str) -> Batch:
        batch = await self.queue.batch_store.batch(batch_id)
        assert batch is not None
        return batch

    async def results(self, batch_id: str) -> tuple[Lines, Lines]:
        """Output and errors by custom id; fails if one is there twice."""
        outcome = (await self.batch(batch_id)).outcome
        assert outcome is not None
        return await self._lines(outcome.output_file_id), await self._lines(outcome.error_file_id)

    async def _lines(self, file_id: str | None) -> Lines:
        if file_id is None:
            return {}
        file = await self.queue.batch_store.file(file_id)
        assert file is not None
        text = b"".join(self.storage.pieces(file.path))
        assert len(text) == file.size_bytes
        lines = [orjson.loads(line) for line in text.splitlines()]
        found = {line["custom_id"]: line for line in lines}
        assert len(found) == len(lines), "a custom id is there twice"
        return found


@dataclass(slots=True)
class HoldingWorker(ScriptedWorker):
    """Stands still at a job whose text is ``hold``, until it is cancelled."""

    async def _answer(self, claim: Claim, script: Script) -> None:
        if b'"hold"' in claim.body:
            script = replace(script, hold_at=0)
        # Not super(): a dataclass with slots is another class than the one that its methods were made in.
        await ScriptedWorker._answer(self, claim, script)


@pytest.fixture
async def rig() -> AsyncGenerator[Rig]:
    queue = MemoryQueue()
    worker = HoldingWorker(queue)
    running = asyncio.create_task(worker.run())
    await worker.is_up.wait()
    yield Rig(queue, worker)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


@pytest.fixture
def service(rig: Rig, tmp_path: Path) -> Service:
    return Service(rig.queue, Storage(str(tmp_path / "files")))
