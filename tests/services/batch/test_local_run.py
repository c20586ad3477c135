"""`headway batch run` works through a file from a terminal, and goes on where it was killed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest
from tests.conftest import ANY
from tests.gateway.scripted_worker import Script, ScriptedWorker
from tests.services.batch.batch_fleet import BatchFleet
from tests.services.batch.conftest import chat_line, jsonl
from tests.services.batch.test_killed import fleet  # noqa: F401 # the same fixture

from headway.queueing.redis_queue import RedisQueue
from headway.services.batch.local_run import LocalRun
from headway.services.errors import NotReachableError, UsageError

if TYPE_CHECKING:
    from tests.conftest import StartRedis


def ids_in(path: Path) -> list[str]:
    return [orjson.loads(line)["custom_id"] for line in path.read_bytes().splitlines()]


async def test_a_killed_run_goes_on_and_answers_each_line_once(fleet: BatchFleet) -> None:  # noqa: F811
    source, output = fleet.folder / "in.jsonl", fleet.folder / "out.jsonl"
    lines = [chat_line(f"line-{n}") for n in range(150)] + [chat_line("bad", temperature=9)]
    source.write_bytes(jsonl(*lines))
    arguments = ("batch", "run", str(source), "-o", str(output), "--in-flight", "16")
    first = await asyncio.to_thread(fleet.start, *arguments)
    while not output.exists() or len(output.read_bytes().splitlines()) < 10:
        await asyncio.sleep(0.01)
    await asyncio.to_thread(fleet.kill, first)
    with output.open("ab") as half:
        half.write(b'{"id": "batch_req_')  # what a kill in the middle of a write leaves
    second = await asyncio.to_thread(fleet.start, *arguments)
    assert await asyncio.to_thread(second.wait, 60) == 1, fleet.log()
    answered, failed = ids_in(output), ids_in(fleet.folder / "out.errors.jsonl")
    assert sorted(answered) == sorted(f"line-{n}" for n in range(150))
    assert failed == ["bad"]
    assert not output.with_name("out.jsonl.run").exists()
    third = await asyncio.to_thread(fleet.start, *arguments)
    assert await asyncio.to_thread(third.wait, 60) == 2, "it overwrites nothing"
    assert "is there already" in fleet.log()


async def test_a_run_that_was_stopped_goes_on_with_what_was_cancelled(fleet: BatchFleet) -> None:  # noqa: F811
    """The jobs of the first run are cancelled, and kept as such for an hour."""
    source, output = fleet.folder / "in.jsonl", fleet.folder / "out.jsonl"
    source.write_bytes(jsonl(*(chat_line(f"line-{n}") for n in range(200))))
    arguments = ("batch", "run", str(source), "-o", str(output), "--in-flight", "64")
    first = await asyncio.to_thread(fleet.start, *arguments)
    while not output.exists() or len(output.read_bytes().splitlines()) < 10:
        await asyncio.sleep(0.01)
    first.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(first.wait, 30) == 130, fleet.log()
    assert len(ids_in(output)) < 200, "it was stopped in the middle"
    second = await asyncio.to_thread(fleet.start, *arguments)
    assert await asyncio.to_thread(second.wait, 60) == 0, fleet.log()
    assert sorted(ids_in(output)) == sorted(f"line-{n}" for n in range(200))
    assert not (fleet.folder / "out.errors.jsonl").exists()


async def test_a_server_that_goes_away_meanwhile_is_told_of_and_waited_for(
    start_redis: StartRedis, tmp_path: Path
) -> None:
    server = start_redis(ANY, "--appendonly", "yes", "--appendfsync", "always")
    mine, queue = BatchFleet(server.url, tmp_path), RedisQueue(server.url)
    worker = ScriptedWorker(queue, Script(pace=lambda: asyncio.sleep(0.02)))
    working = asyncio.create_task(worker.run())
    await worker.is_up.wait()
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(jsonl(*(chat_line(f"line-{n}") for n in range(200))))
    arguments = ("batch", "run", str(source), "-o", str(output), "--in-flight", "16")
    run = await asyncio.to_thread(mine.start, *arguments)
    try:
        await until(lambda: output.exists() and len(output.read_bytes().splitlines()) >= 10)
        await asyncio.to_thread(server.kill)
        await until(lambda: "the run goes on once it can be reached" in mine.log())
        await asyncio.to_thread(server.start)
        assert await asyncio.to_thread(run.wait, 60) == 0, mine.log()
    finally:
        await asyncio.to_thread(mine.close)
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        await queue.close()
    assert sorted(ids_in(output)) == sorted(f"line-{n}" for n in range(200))
    told = [line for line in mine.log().splitlines() if line.startswith("headway:")]
    assert told[1:] == ["headway: the server can be reached again"], "once each, not at every try"


async def until(is_so: Callable[[], bool]) -> None:
    """Return once it is so."""
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.02)


def test_a_server_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(jsonl(chat_line("a")))
    run = LocalRun(source, output, tmp_path / "err.jsonl", "default", 16)
    with pytest.raises(NotReachableError, match="no Redis or Valkey answers at"):
        run.run(f"unix://{tmp_path}/nobody.sock", tmp_path, shows=False)


@pytest.mark.parametrize(
    ("source", "output", "why"),
    [("none.jsonl", "out.jsonl", "cannot be read"), ("in.jsonl", "none/out.jsonl", "cannot be written")],
)
def test_a_file_that_is_out_of_reach_is_wrong_usage(
    tmp_path: Path, source: str, output: str, why: str
) -> None:
    """And so has another exit code than a run in which lines have errors."""
    (tmp_path / "in.jsonl").write_bytes(jsonl(chat_line("a")))
    run = LocalRun(tmp_path / source, tmp_path / output, tmp_path / "err.jsonl", "default", 16)
    with pytest.raises(UsageError, match=why) as refused:
        run.run(None, tmp_path, shows=False)
    assert refused.value.exit_code == 2
