"""A batch whose input is deleted ends with the reason, leaves no job running, and keeps what was answered."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tests.gateway.conftest import Rig, until
from tests.services.batch.conftest import Service, chat_line

from headway.queueing.messages import Job


async def test_a_deleted_input_ends_its_batch_with_the_reason(service: Service) -> None:
    batch_id = await service.post(chat_line("a"))
    file = await service.queue.batch_store.file((await service.batch(batch_id)).asked.input_file_id)
    assert file is not None
    await service.queue.batch_store.remove_file(file)
    assert await service.turn(batch_id)
    outcome = (await service.batch(batch_id)).outcome
    assert outcome is not None
    assert (outcome.state, outcome.faults[0].code) == ("failed", "input_file_missing")


async def test_an_input_that_is_deleted_in_the_middle_leaves_no_job_running(
    service: Service, rig: Rig
) -> None:
    """They would run on for nobody: without its lines nobody takes their answers."""
    batch_id = await service.post(*(chat_line(f"{n}", "hold") for n in range(20)))
    others = await service.queue.submit(Job(model="tiny", prompt="hold", tenant="acme"), key="another")
    is_posted = False
    turn = asyncio.create_task(service.turn(batch_id, stops=lambda: is_posted))
    await until(lambda: len(rig.worker.seen) >= 8)
    is_posted = True
    assert not await turn
    file = await service.queue.batch_store.file((await service.batch(batch_id)).asked.input_file_id)
    assert file is not None
    service.storage.remove(file.path)
    await service.queue.batch_store.remove_file(file)
    assert await service.turn(batch_id)
    outcome = (await service.batch(batch_id)).outcome
    assert outcome is not None
    assert (outcome.state, outcome.faults[0].code) == ("failed", "input_file_missing")

    async def left() -> set[str]:
        queue = service.queue
        jobs = (*await queue.waiting_jobs("tiny", limit=99), *await queue.running_jobs("tiny", 99))
        return {job.job_id for job in jobs}

    async with asyncio.timeout(10):
        while await left() - {others.job_id}:
            await asyncio.sleep(0.02)


async def test_an_input_that_goes_while_it_is_read_loses_no_answer_that_was_there(
    service: Service, rig: Rig
) -> None:
    """An object store answers nothing more of a file that was deleted; a disk reads it to its end."""
    service.settings = replace(service.settings, open_parts=2)
    lines = [chat_line("0"), chat_line("1", "hold"), chat_line("2")] + [
        chat_line(f"{n}") for n in range(3, 40)
    ]
    batch_id = await service.post(*lines)
    file = await service.queue.batch_store.file((await service.batch(batch_id)).asked.input_file_id)
    assert file is not None
    input_path, opening = file.path, service.storage.open

    class Reading:
        def __init__(self, offset: int) -> None:
            self._opened, self.lasts = opening(input_path, offset), True

        def readline(self, size: int = -1, /) -> bytes:
            if not self.lasts:
                raise FileNotFoundError(input_path)
            return self._opened.readline(size)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._opened, name)

    made: list[Reading] = []

    def opened(path: str, offset: int = 0) -> Any:
        if path != input_path:
            return opening(path, offset)
        made.append(Reading(offset))
        return made[-1]

    service.storage.open = opened  # type: ignore[method-assign]  # the object store of this test
    turn = asyncio.create_task(service.turn(batch_id))
    await until(lambda: len(rig.worker.ended) >= 6)
    await service.queue.batch_store.remove_file(file)
    for reading in made:
        reading.lasts = False
    for cancel in rig.worker._cancels.values():
        cancel.set()
    assert await turn
    batch = await service.batch(batch_id)
    assert (batch.state, batch.outcome is not None) == ("failed", True)
    assert batch.outcome is not None
    output, errors = await service.results(batch_id)
    assert len(output) + len(errors) == batch.tally.completed + batch.tally.failed >= 6
    (fault,) = batch.outcome.faults
    assert f"the results of {len(output) + len(errors)} of its 40 lines are kept" in fault.message
