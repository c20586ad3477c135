"""What is kept, for how long, and where: on a disk, and on a kind of storage that knows no folders."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import orjson
import pytest
from structlog.testing import capture_logs
from tests.gateway.conftest import Rig, over
from tests.gateway.scripted_worker import MODEL, Script, card
from tests.services.batch.conftest import SMALL, Service, chat_line

from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.messages import Job
from headway.queueing.stored_file import StoredFile
from headway.services.batch.place import FOLDER, enter
from headway.services.batch.retention import ORPHAN_SECONDS, sweep
from headway.services.batch.storage import GatewayBlobs, Storage
from headway.services.batch.usage_books import write_usage
from headway.services.errors import UsageError


@dataclass(slots=True)
class Clock:
    """The server's; moved by hand."""

    ahead_seconds: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_seconds


@pytest.fixture(params=["folder", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """Each kind under a root of its own: fsspec's memory is the whole process's."""
    made = Storage(str(tmp_path / "files") if request.param == "folder" else f"memory://root-{uuid4().hex}")
    yield made
    made.remove_all("files")
    made.remove_all("work")
    made.remove_all("usage")
    made.remove_all(FOLDER)


async def test_a_batch_is_worked_through_on_any_kind_of_storage(rig: Rig, storage: Storage) -> None:
    service = Service(rig.queue, storage)
    ids = [f"line-{n}" for n in range(20)]
    batch_id = await service.post(*(chat_line(each) for each in ids), chat_line("bad", temperature=9))
    storage.check()
    assert await service.turn(batch_id)
    output, errors = await service.results(batch_id)
    assert (sorted(output), list(errors)) == (sorted(ids), ["bad"])
    assert storage.names("work") == []
    assert len(storage.names("files")) == 3, "the input, the output and the errors"


async def test_what_a_gateway_stores_is_read_back_and_removed(storage: Storage) -> None:
    blobs = GatewayBlobs(storage)
    writer = await blobs.create("files/file-1.a")
    for piece in (b"first", b"second"):
        await writer.write(piece)
    await writer.close()
    assert b"".join([piece async for piece in blobs.read("files/file-1.a")]) == b"firstsecond"
    opened = storage.open("files/file-1.a", offset=5)
    assert opened.read() == b"second"
    opened.close()
    half = await blobs.create("files/file-2.a")
    await half.write(b"half")
    await half.abandon()
    assert [name for name, _ in storage.names("files")] == ["file-1.a"]
    ((_, written),) = storage.names("files")
    assert abs(time.time() - written) < 60
    await blobs.remove("files/file-1.a")
    await blobs.remove("files/file-1.a")
    with pytest.raises(FileNotFoundError):
        storage.open("files/file-1.a")
    assert storage.names("no-such-folder") == []


def test_a_place_that_no_library_reaches_is_refused_with_what_to_install() -> None:
    with pytest.raises(UsageError, match="nosuch://x"):
        Storage("nosuch://x/y")


async def test_expired_files_and_batches_that_ended_long_ago_go_and_nothing_else(storage: Storage) -> None:
    clock = Clock()
    async with over(MemoryQueue(clock=clock), Script()) as rig:
        service = Service(rig.queue, storage, replace(SMALL, file_keep_seconds=3 * 86_400.0))
        store = rig.queue.batch_store
        old = await service.post(chat_line("a"))
        assert await service.turn(old)
        clock.ahead_seconds = 2 * 86_400.0
        await rig.queue.heartbeat(card(), ttl_seconds=60)
        new = await service.post(chat_line("b"))
        assert await service.turn(new)
        unfinished = await service.post(chat_line("c"))
        await sweep(rig.queue, storage, 30 * 86_400.0)
        assert len(storage.names("files")) == 5, "nothing is old enough yet"

        clock.ahead_seconds = 4 * 86_400.0  # the first batch's output has expired, its inputs have not
        await sweep(rig.queue, storage, 3 * 86_400.0)
        assert await store.batch(old) is None
        assert (await service.batch(new)).state == "completed"
        assert (await service.batch(unfinished)).state == "validating"
        assert set(await store.open_batches()) == {unfinished}
        page = await store.file_page("acme", None, 100, "desc")
        assert page is not None
        assert len(page.ids) == len(storage.names("files")) == 4
        output, _ = await service.results(new)
        assert list(output) == ["b"]


async def test_what_killed_processes_left_goes_after_a_day_and_never_what_is_known(tmp_path: Path) -> None:
    queue, storage = MemoryQueue(), Storage(str(tmp_path))
    service = Service(queue, storage)
    waiting = await service.post(chat_line("a"))
    (known,) = (name for name, _ in storage.names("files"))
    lost, young, gone = f"file-{'a' * 24}.{'0' * 8}", f"file-{'b' * 24}.{'0' * 8}", f"batch_{'c' * 24}"
    for path in (f"files/{lost}", f"files/{young}", "files/notes.txt", f"work/{waiting}/0", f"work/{gone}/0"):
        storage.write(path, [b"x"])
    long_ago = time.time() - ORPHAN_SECONDS - 60
    for path in (f"files/{known}", f"files/{lost}", "files/notes.txt", f"work/{waiting}", f"work/{gone}"):
        os.utime(tmp_path / path, (long_ago, long_ago))
    await sweep(queue, storage, 3600.0)
    assert {name for name, _ in storage.names("files")} == {known, young, "notes.txt"}
    assert {name for name, _ in storage.names("work")} == {waiting}


@pytest.mark.parametrize("is_restored_empty", [False, True])
async def test_nothing_unknown_goes_where_two_queues_have_left_their_names(
    tmp_path: Path, is_restored_empty: bool
) -> None:
    """Two deployments with one folder, or a server that has lost its data."""
    storage = Storage(str(tmp_path))
    queue, other = MemoryQueue(), MemoryQueue()
    await Service(queue, storage).post(chat_line("a"))
    await sweep(queue, storage, 3600.0)
    if not is_restored_empty:  # the gateway of the other deployment, at its start
        assert len(await enter(other.batch_store, storage)) == 1
    storage.write(f"work/batch_{'c' * 24}/0", [b"x"])
    named: list[str] = []
    paths = [f"files/{storage.names('files')[0][0]}", f"work/batch_{'c' * 24}"]
    long_ago = time.time() - ORPHAN_SECONDS - 60
    for path in paths:
        os.utime(tmp_path / path, (long_ago, long_ago))
    for each in (other,) if is_restored_empty else (queue, other):
        with capture_logs() as logs:
            await sweep(each, storage, 3600.0)
        assert all((tmp_path / path).exists() for path in paths)
        (warning,) = (line for line in logs if line["log_level"] == "warning")
        named = warning["other_queues"]
        assert "a place of its own (--files" in warning["hint"]
        assert f"remove its name from {FOLDER}/" in warning["hint"]
    assert named == [await queue.batch_store.queue_id()]
    storage.remove(f"{FOLDER}/{named[0]}")  # as the hint says
    await sweep(other, storage, 3600.0)
    assert not any((tmp_path / path).exists() for path in paths)


async def test_a_queues_name_is_written_once_in_any_kind_of_place(storage: Storage) -> None:
    queue = MemoryQueue()
    assert await enter(queue.batch_store, storage) == ()
    written = storage.names(FOLDER)
    assert [name for name, _ in written] == [await queue.batch_store.queue_id()]
    assert await enter(queue.batch_store, storage) == ()
    assert storage.names(FOLDER) == written


async def test_what_others_keep_in_the_place_is_left_alone(tmp_path: Path) -> None:
    """An operator may name any folder, also one with a folder `files` of somebody else's."""
    queue, storage = MemoryQueue(), Storage(str(tmp_path))
    theirs = ("files/thesis.pdf", "files/file-1 (copy).txt", "work/projects/plan.md")
    for path in theirs:
        storage.write(path, [b"x"])
    long_ago = time.time() - ORPHAN_SECONDS - 60
    for path in (*theirs, "work/projects"):
        os.utime(tmp_path / path, (long_ago, long_ago))
    await sweep(queue, storage, 3600.0)
    assert all((tmp_path / path).exists() for path in theirs)


def test_a_file_that_could_not_be_brought_to_the_disk_is_not_called_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(str(tmp_path))

    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output"):
        storage.write("files/file-a", [b"x"])
    assert storage.names("files") == []


def test_a_name_that_is_looked_for_never_holds_half_a_file(storage: Storage) -> None:
    """As the books of a day: what is there counts as written."""

    def pieces() -> Iterator[bytes]:
        yield b"half"
        assert "2026-11-30.jsonl" not in {name for name, _ in storage.names("usage")}
        yield b" and half"

    storage.publish("usage/2026-11-30.jsonl", pieces())
    assert [name for name, _ in storage.names("usage")] == ["2026-11-30.jsonl"]
    assert b"".join(storage.pieces("usage/2026-11-30.jsonl")) == b"half and half"


async def test_a_file_whose_bytes_are_gone_already_is_forgotten(storage: Storage) -> None:
    """As a crash between the two steps leaves it."""
    queue = MemoryQueue()
    now_ms = await queue.batch_store.now_ms()
    gone = StoredFile("file-1", "acme", "a", "batch", 1, now_ms - 9, now_ms - 5, "files/file-1.a")
    await queue.batch_store.add_file(gone)
    await sweep(queue, storage, 3600.0)
    assert await queue.batch_store.count_files("acme") == 0
    assert await queue.batch_store.expired_files(10) == []


async def test_the_books_have_a_line_for_each_tenant_and_model_once_a_day_is_over(storage: Storage) -> None:
    clock = Clock()
    async with over(MemoryQueue(clock=clock), Script()) as rig:
        day = datetime.fromtimestamp(clock(), UTC).date()
        for tenant in ("acme", "acme", "other"):
            await rig.queue.submit(Job(model=MODEL, prompt="a", tenant=tenant))
        await rig.until_ended(3)
        await write_usage(rig.queue, storage)
        assert storage.names("usage") == [], "the day is not over"
        clock.ahead_seconds = 86_400.0 + 2 * 3600.0
        await write_usage(rig.queue, storage)
        assert [name for name, _ in storage.names("usage")] == [f"{day}.jsonl"]
        lines = [orjson.loads(line) for line in b"".join(storage.pieces(f"usage/{day}.jsonl")).splitlines()]
        assert [(line["tenant"], line["model"], line["jobs"]) for line in lines] == [
            ("acme", MODEL, 2),
            ("other", MODEL, 1),
        ]
        assert [line["completion_tokens"] for line in lines] == [10, 5]
        assert {line["day"] for line in lines} == {day.isoformat()}
        before = storage.names("usage")
        await write_usage(rig.queue, storage)
        assert storage.names("usage") == before, "a day is written once"
