"""Batches leave workers' places free where others are served, and only there."""

from __future__ import annotations

import pytest
from tests.gateway.conftest import Rig, post_job
from tests.gateway.scripted_worker import card
from tests.services.batch.conftest import Service, chat_line

from headway.services.batch.flight import Flight
from headway.services.batch.line import Line
from headway.services.batch.room import LATELY_MS, lines_in_flight

MOST = 256


async def lines(rig: Rig, *, later_ms: int = 0, places: int = 32) -> int:
    now_ms = await rig.queue.batch_store.now_ms()
    workers = [card(max_running=places), card("w2", model="other", max_running=1000)]
    return await lines_in_flight(rig.queue, ["tiny"], workers, MOST, now_ms + later_ms)


async def test_a_batch_alone_has_all_that_it_likes(rig: Rig) -> None:
    assert await lines(rig) == MOST
    await post_job(rig, priority="batch")
    await rig.until_ended(1)
    assert await lines(rig) == MOST, "other batches are no reason"


async def test_beside_others_batches_have_a_quarter_of_the_places_together(
    rig: Rig, service: Service
) -> None:
    await post_job(rig, priority="standard")
    await rig.until_ended(1)
    assert await lines(rig) == 8
    for _ in range(3):
        await service.post(chat_line("a"))
    assert await lines(rig) == 2
    assert await lines(rig, places=0) == 1, "and never none: its workers may be away"
    assert await lines(rig, later_ms=LATELY_MS + 60_000) == MOST


async def test_a_running_batch_goes_by_it(
    rig: Rig, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await post_job(rig, priority="interactive")
    await rig.until_ended(1)
    most, add = 0, Flight.add

    async def counted(self: Flight, part: int, line: Line) -> None:
        nonlocal most
        await add(self, part, line)
        most = max(most, self.size)

    monkeypatch.setattr(Flight, "add", counted)
    batch_id = await service.post(*(chat_line(f"{n}") for n in range(12)))
    assert await service.turn(batch_id)
    assert most == 2, "a quarter of the scripted worker's 8 places"
