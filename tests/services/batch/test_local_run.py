"""`headway batch run` works through a file from a terminal, and goes on where it was killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
from tests.services.batch.batch_fleet import BatchFleet
from tests.services.batch.conftest import chat_line, jsonl
from tests.services.batch.test_killed import fleet  # noqa: F401 # the same fixture


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
