"""A large batch on the scripted model while its Celery workers are killed: ``make soak-batch``.

Prints what was seen, and exits 1 unless every custom id came out exactly once and memory stayed bounded.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from random import Random

import orjson
from tests.conftest import RedisServer
from tests.services.batch.batch_fleet import BatchFleet

from headway.queueing.batch import NewBatch
from headway.queueing.protocol import Queue
from headway.queueing.redis_queue import RedisQueue
from headway.queueing.stored_file import StoredFile
from headway.services.batch.storage import Storage

MOST_BYTES = 256 << 20
"""Of one batch worker: what it is allowed to take at its peak, whatever the file's size."""
ENDPOINT = "/v1/chat/completions"


class Peak(threading.Thread):
    """The most memory that any batch worker ever had."""

    def __init__(self, fleet: BatchFleet) -> None:
        super().__init__(daemon=True)
        self._fleet = fleet
        self.size_bytes = 0

    def run(self) -> None:
        while True:
            for process in self._fleet.running[1:]:
                self.size_bytes = max(self.size_bytes, _high_water(process.pid))
            time.sleep(0.2)


def _high_water(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM")), 0)


def write_input(storage: Storage, lines: int, line_bytes: int) -> int:
    """The input file; its size."""
    padding = "x" * line_bytes

    def line(number: int) -> bytes:
        body = {
            "model": "scripted",
            "messages": [{"role": "user", "content": f"{number}"}],
            "max_tokens": 2,
            "metadata": {"padding": padding[:512]},
            "user": padding,
        }
        return (
            orjson.dumps({"custom_id": f"id-{number}", "method": "POST", "url": ENDPOINT, "body": body})
            + b"\n"
        )

    return storage.write("files/file-input000", (line(number) for number in range(lines)))


async def post(queue: Queue, size_bytes: int) -> str:
    store = queue.batch_store
    now_ms = await store.now_ms()
    end_ms = now_ms + 86_400_000
    file = StoredFile(
        "file-input000", "acme", "in.jsonl", "batch", size_bytes, now_ms, end_ms, "files/file-input000"
    )
    await store.add_file(file)
    batch_id = f"batch_{time.time_ns():024x}"
    await store.add_batch(NewBatch(batch_id, "acme", file.file_id, ENDPOINT, "24h", now_ms, end_ms))
    return batch_id


async def verify(queue: Queue, storage: Storage, batch_id: str, lines: int) -> list[str]:
    """What is wrong with the results."""
    batch = await queue.batch_store.batch(batch_id)
    assert batch is not None
    assert batch.outcome is not None
    seen: dict[str, int] = {}
    for file_id in filter(None, (batch.outcome.output_file_id, batch.outcome.error_file_id)):
        file = await queue.batch_store.file(file_id)
        assert file is not None
        with closing(storage.open(file.path)) as opened:
            while text := opened.readline():
                name = orjson.loads(text)["custom_id"]
                seen[name] = seen.get(name, 0) + 1
    wanted = {f"id-{number}" for number in range(lines)}
    found: list[str] = []
    if lost := wanted - seen.keys():
        found.append(f"{len(lost)} lines lost, such as {sorted(lost)[:3]}")
    if doubled := [name for name, count in seen.items() if count > 1]:
        found.append(f"{len(doubled)} lines doubled, such as {doubled[:3]}")
    if batch.outcome.tally.completed != lines or batch.outcome.output_file_id is None:
        found.append(f"counts say {batch.outcome.tally}, state {batch.outcome.state}")
    return found


async def soak(fleet: BatchFleet, lines: int, kills: int, seed: int, line_bytes: int) -> int:
    """Run it; the exit code."""
    rng = Random(seed)
    storage = Storage(fleet.files)
    queue = RedisQueue(fleet.redis_url)
    size_bytes = write_input(storage, lines, line_bytes)
    print(f"{lines} lines, {size_bytes / 1e6:.1f} MB, {kills} kills, seed {seed}", flush=True)
    fleet.start("worker", "--model", "scripted:ms_per_step=0.1,blocks=8192", "--max-sequences", "128")
    while not await queue.workers():
        await asyncio.sleep(0.1)
    peak = Peak(fleet)
    batch_id = await post(queue, size_bytes)
    began = time.monotonic()
    process = await asyncio.to_thread(fleet.start_batch_worker)
    peak.start()
    killed_at: list[int] = []
    while await queue.batch_store.open_batches():
        batch = await queue.batch_store.batch(batch_id)
        done = 0 if batch is None else batch.tally.completed
        # Spread over the work: the next kill once another share of it is done.
        if len(killed_at) < kills and done >= lines * (len(killed_at) + rng.random()) / (kills + 1):
            await asyncio.sleep(rng.uniform(0, 0.5))
            await asyncio.to_thread(fleet.kill, process)
            killed_at.append(done)
            at, size = time.monotonic() - began, peak.size_bytes >> 20
            print(f"  {at:6.1f} s  killed at {done} lines, peak {size} MiB", flush=True)
            process = await asyncio.to_thread(fleet.start_batch_worker)
        await asyncio.sleep(0.1)
    seconds = time.monotonic() - began
    problems = await verify(queue, storage, batch_id, lines)
    if len(killed_at) < kills:
        problems.append(f"only {len(killed_at)} kills fell into the work")
    if peak.size_bytes > MOST_BYTES:
        problems.append(f"a batch worker took {peak.size_bytes >> 20} MiB")
    print(
        f"{seconds:.1f} s, {lines / seconds:.0f} lines/s; peak of a batch worker {peak.size_bytes >> 20} MiB"
    )
    print("\n".join(problems) or "every custom id exactly once", flush=True)
    await queue.close()
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10_000)
    parser.add_argument("--line-bytes", type=int, default=3200, help="padding of a line: 200 MB in all")
    asked = parser.parse_args()
    server = RedisServer("redis7", "--maxmemory-policy", "noeviction")
    server.start()
    with tempfile.TemporaryDirectory(prefix="headway-soak-") as folder:
        fleet = BatchFleet(server.url, Path(folder))
        try:
            return asyncio.run(soak(fleet, asked.lines, asked.kills, asked.seed, asked.line_bytes))
        finally:
            fleet.close()
            server.remove()


if __name__ == "__main__":
    sys.exit(main())
