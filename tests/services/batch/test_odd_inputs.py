"""Files as editors write them, places that are two things at once, and clocks that are set back."""

from __future__ import annotations

import fcntl
import os
import time
from codecs import BOM_UTF8
from dataclasses import asdict
from pathlib import Path
from typing import IO

import orjson
import pytest
from structlog.testing import capture_logs
from tests.services.batch.conftest import Service, chat_line, jsonl

from headway.queueing.batch import NewBatch, decode_batch
from headway.queueing.keys import (
    BATCHES,
    BATCHES_OPEN,
    FILES_EXPIRING,
    BatchKeys,
    FileKeys,
    WebhookKeys,
)
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.stored_file import StoredFile, decode_file
from headway.queueing.webhook_store import Webhook
from headway.services.batch import errands, retention
from headway.services.batch.batch_pages import fleet_figures
from headway.services.batch.celery_app import make_app, steady_now
from headway.services.batch.local_run import LocalRun
from headway.services.batch.retention import sweep
from headway.services.batch.settings import BatchSettings
from headway.services.batch.turn_line import TurnLine
from headway.services.batch.webhook_signature import new_secret
from headway.services.errors import UsageError


async def test_a_file_with_a_mark_of_utf8_carriage_returns_and_blank_lines_is_worked_through(
    service: Service,
) -> None:
    lines = jsonl(*(chat_line(f"line-{n}") for n in range(9))).replace(b"\n", b"\r\n\r\n")
    batch_id = await service.post(raw=BOM_UTF8 + b"\r\n" + lines)
    assert await service.turn(batch_id)
    output, errors = await service.results(batch_id)
    assert (sorted(output), errors) == (sorted(f"line-{n}" for n in range(9)), {})


def test_a_mark_of_utf8_that_begins_a_later_line_is_no_json(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(jsonl(chat_line("a")) + BOM_UTF8 + jsonl(chat_line("b")))
    with pytest.raises(UsageError, match="line 2: the line is not valid JSON"):
        run(source, tmp_path / "out.jsonl")


def run(source: Path, output: Path, errors: Path | None = None) -> int:
    """Up to where the queue is needed: there is none."""
    local = LocalRun(source, output, errors or output.with_suffix(".errors.jsonl"), "acme", 8)
    return local.run("redis://127.0.0.1:1", output.parent, shows=False)


def test_no_file_of_a_run_is_two_things_at_once(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(jsonl(chat_line("a")))
    for places in ((source, source), (source, output, output), (source, output, source)):
        with pytest.raises(UsageError, match=r"is .* and .* too"):
            run(*places)
    assert source.read_bytes() == jsonl(chat_line("a"))
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_two_runs_of_one_output_do_not_meet(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(jsonl(chat_line("a")))
    with (tmp_path / "out.jsonl.run").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another run works on"):
            run(source, output)


def test_a_run_that_begins_as_another_ends_locks_a_mark_that_others_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one removes its mark between this one's opening and locking it."""
    source, mark = tmp_path / "in.jsonl", tmp_path / "out.jsonl.run"
    output, errors = tmp_path / "out.jsonl", tmp_path / "out.errors.jsonl"
    source.write_bytes(jsonl(chat_line("a")))
    flock, locked = fcntl.flock, list[int]()

    def ends_first(opened: IO[bytes], how: int) -> None:
        if not locked:
            mark.unlink()
        flock(opened, how)  # of a run that is not alone it raises
        locked.append(os.fstat(opened.fileno()).st_ino)

    monkeypatch.setattr(fcntl, "flock", ends_first)
    local = LocalRun(source, output, errors, "acme", 8)
    with local._alone():
        assert local._resume().startswith("batch_")
        assert len(locked) == 2
        assert locked[1] == mark.stat().st_ino
        with pytest.raises(UsageError, match="another run works on"):
            run(source, output)


@pytest.mark.parametrize(
    ("mark", "output", "told"),
    [
        ("something else", "", "is no mark of a run"),
        ("batch_" + "0" * 24, "not what a run writes\n", "a line that no run has written"),
        ("", '{"custom_id": "a"}\n', "is there already"),
    ],
)
def test_files_that_no_run_has_left_are_not_gone_on_with(
    tmp_path: Path, mark: str, output: str, told: str
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(jsonl(chat_line("a")))
    out.write_text(output)
    (tmp_path / "out.jsonl.run").write_text(mark)
    with pytest.raises(UsageError, match=told):
        run(source, out)
    assert out.read_text() == output


def test_errands_are_due_in_time_when_the_machines_clock_is_put_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    app, _ = make_app(BatchSettings(files=str(tmp_path)))
    when = app.conf.beat_schedule["due"]["schedule"]
    last = steady_now()
    passed = time.monotonic() + 2.5
    monkeypatch.setattr(time, "monotonic", lambda: passed)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert when.is_due(last).is_due
    assert when.now() == steady_now()


def test_celerys_clock_can_ask_for_every_errand(tmp_path: Path) -> None:
    app, _ = make_app(BatchSettings(files=str(tmp_path)))
    for entry in app.conf.beat_schedule.values():
        app.tasks[entry["task"]].__header__()  # how Celery checks arguments before it sends; none are given


async def test_a_webhook_that_cannot_be_read_holds_up_no_batch_and_one_of_a_newer_version_hears_of_it(
    service: Service,
) -> None:
    newer = asdict(Webhook("wh_2", "acme", "https://example.org", new_secret())) | {"retries": 3}
    for name, text in (("wh_1", b"\xff{"), ("wh_2", orjson.dumps(newer)), ("wh_3", b"[]"), ("wh_4", b"{}")):
        await service.queue.webhook_store._commands.call("HSET", WebhookKeys.of_tenant("acme"), name, text)
    batch_id = await service.post(chat_line("a"))
    assert await service.turn(batch_id), "it has ended, and is closed"
    now_ms = await service.queue.batch_store.now_ms()
    (message_id,) = await service.queue.webhook_store.due(now_ms + 1, 10)
    message = await service.queue.webhook_store.message(message_id)
    assert message is not None
    assert message.webhook_id == "wh_2"
    assert await service.queue.webhook_store.webhook("acme", "wh_1") is None


async def test_a_record_that_cannot_be_read_holds_up_nobody_elses_batch_file_or_retention(
    service: Service, tmp_path: Path
) -> None:
    store = service.queue.batch_store
    good = await service.post(chat_line("a"))
    for name, created in (("batch_broken000", b"{"), ("batch_listlist0", b"[]"), ("batch_old00000", b"{}")):
        await store._commands.call("HSET", BatchKeys(name).record, "created", created)
        for key in (BATCHES_OPEN, BATCHES, BatchKeys.of_tenant("acme")):
            await store._commands.call("ZADD", key, 1, name)
    await store._commands.call("SET", FileKeys.record("file-broken00000000"), b"{")
    await store._commands.call("ZADD", FILES_EXPIRING, 1, "file-broken00000000")
    line = TurnLine(time.monotonic)
    turns = [await line.next(store) for _ in range(4)]
    assert good in turns
    assert [batch.asked.batch_id for batch in await store.batches([str(turn) for turn in turns])] == [good]
    assert await service.turn(good)
    assert (await fleet_figures(service.queue)).open_batches == 3
    service.storage.write("files/file-broken00000000", [b"kept"])
    swept = await sweep(service.queue, service.storage, -1.0)
    assert (swept.expired_files, swept.forgotten_batches) == (0, 1)
    assert b"".join(service.storage.pieces("files/file-broken00000000")) == b"kept"


async def test_more_unreadable_records_than_are_looked_at_at_once_stop_no_retention(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AT_ONCE", 2)
    store = service.queue.batch_store
    for number in range(5):
        await store._commands.call("HSET", BatchKeys(f"batch_broken{number}").record, "created", b"{")
        await store._commands.call("ZADD", BATCHES, 1, f"batch_broken{number}")
        await store._commands.call("SET", FileKeys.record(f"file-broken{number}"), b"{")
        await store._commands.call("ZADD", FILES_EXPIRING, 1, f"file-broken{number}")
    ended = [await service.post(chat_line("a")) for _ in range(3)]
    for batch_id in ended:
        assert await service.turn(batch_id)
    await store.add_file(StoredFile("file-old", "acme", "a", "batch", 1, 1, 2, "files/file-old"))
    swept = await sweep(service.queue, service.storage, -1.0)
    assert (swept.expired_files, swept.forgotten_batches) == (1, 3)


@pytest.mark.parametrize("record", [b"{", b"[]", b'{"batch_id": "batch_broken"}'])
async def test_a_batch_whose_record_cannot_be_read_loses_its_place_in_line_and_is_named_once(
    service: Service, record: bytes
) -> None:
    store = service.queue.batch_store
    await store._commands.call("HSET", BatchKeys("batch_broken").record, "created", record)
    await store._commands.call("ZADD", BATCHES_OPEN, 1, "batch_broken")
    with capture_logs() as logs:
        assert await service.turn("batch_broken")
    assert [line["batch"] for line in logs if line["log_level"] == "error"] == ["batch_broken"]
    assert await store.open_batches() == ()


@pytest.mark.parametrize("broken", ["input", "part"])
async def test_a_batch_whose_input_or_part_has_no_readable_record_fails_and_says_so(
    service: Service, broken: str
) -> None:
    store = service.queue.batch_store
    batch_id = await service.post(chat_line("a"))
    file_id = (await service.batch(batch_id)).asked.input_file_id
    if broken == "input":
        await store._commands.call("SET", FileKeys.record(file_id), b"{")
    else:
        await store._commands.call("HSET", BatchKeys(batch_id).parts, "0", b"{}")
    assert await service.turn(batch_id)
    outcome = (await service.batch(batch_id)).outcome
    assert outcome is not None
    assert (outcome.state, [fault.code for fault in outcome.faults]) == ("failed", ["record_unreadable"])
    assert await store.open_batches() == ()


def test_an_error_of_our_own_in_a_turn_is_not_taken_for_a_service_that_is_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def next_in_line(*_: object) -> str:
        return "batch_12345678"

    async def fails(*_: object) -> bool:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(TurnLine, "next", next_in_line)
    monkeypatch.setattr(errands, "take_turn", fails)
    monkeypatch.setattr(errands, "open_queue", lambda _: MemoryQueue())
    with pytest.raises(ValueError, match="of ours"):
        errands.Errands(BatchSettings(files=str(tmp_path))).take_turn()


def test_a_record_of_a_newer_version_is_read_without_what_it_added() -> None:
    new = NewBatch("batch_12345678", "acme", "file-12345678", "/v1/completions", "24h", 1, 2)
    fields = {b"created": orjson.dumps(asdict(new) | {"of": "later"})}
    assert decode_batch(fields).asked == new
    file = StoredFile("file-12345678", "acme", "a", "batch", 1, 2, 3, "files/a")
    assert decode_file(orjson.dumps(asdict(file) | {"of": "later"})) == file
