"""Tenants are equals at the turns at batches, however many batches each of them has."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.conftest import Rig
from tests.services.batch.batch_fleet import BatchFleet
from tests.services.batch.conftest import HoldingWorker, Service, chat_line

from headway.queueing.batch_turns import OpenBatch
from headway.queueing.redis_queue import RedisQueue
from headway.services.batch.storage import Storage
from headway.services.batch.turn_line import TurnLine
from headway.services.batch.turn_order import SHORTEST_TURN_MS, WAITS_MS, in_turn, to_give_way

LOOK_MS = 2_000
TURN_MS = 120_000


@pytest.fixture
async def fleet(redis_url: str, tmp_path: Path) -> AsyncGenerator[BatchFleet]:
    """One batch worker with four places, and a worker that stands still at some jobs."""
    made = BatchFleet(redis_url, tmp_path)
    queue = RedisQueue(redis_url)
    worker = HoldingWorker(queue)
    running = asyncio.create_task(worker.run())
    await worker.is_up.wait()
    yield made
    await asyncio.to_thread(made.close)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await queue.close()


async def test_one_batch_of_a_tenant_is_done_though_another_tenants_many_take_every_place(
    fleet: BatchFleet,
) -> None:
    queue = RedisQueue(fleet.redis_url)
    service = Service(queue, Storage(fleet.files))
    try:
        for _ in range(40):
            await service.post(chat_line("a", "hold"), tenant="many")
        await asyncio.to_thread(fleet.start_batch_worker)
        async with asyncio.timeout(20):
            while len(await queue.running_jobs("tiny")) < 4:
                await asyncio.sleep(0.05)
        one = await service.post(chat_line("a"), tenant="one")
        async with asyncio.timeout(20):  # a turn has 120 seconds
            while (await service.batch(one)).outcome is None:
                await asyncio.sleep(0.05)
    finally:
        await queue.close()


async def test_the_next_in_line_is_the_other_tenants_batch(service: Service) -> None:
    many = [await service.post(chat_line("a"), tenant="many") for _ in range(200)]
    one = await service.post(chat_line("a"), tenant="one")
    line = TurnLine(lambda: 0.0)
    store = service.queue.batch_store
    assert [await line.next(store), await line.next(store)] == [many[0], one]
    assert await TurnLine(lambda: 0.0).next(store) == many[1], "what had a turn comes after what had none"


async def test_a_batch_at_which_somebody_works_is_passed_over(service: Service) -> None:
    first, second = [await service.post(chat_line("a")) for _ in range(2)]
    store = service.queue.batch_store
    assert await store.take_turn(f"run:{first}", "somebody", 60)
    line = TurnLine(lambda: 0.0)
    assert (await line.next(store), await line.next(store)) == (second, None)


async def test_a_turn_that_is_to_give_way_ends_and_the_batch_goes_on_in_the_next(
    service: Service, rig: Rig
) -> None:
    service.settings = replace(service.settings, turn_seconds=0.2)
    batch_id = await service.post(chat_line("quick"), chat_line("slow", "hold"))
    turn = asyncio.create_task(service.turn(batch_id))
    async with asyncio.timeout(10):
        while len(rig.worker.seen) < 2:
            await asyncio.sleep(0.01)
        assert await service.queue.batch_store.take_turn(f"yield:{batch_id}", "", 10)
        assert not await turn
        for cancel in rig.worker._cancels.values():
            cancel.set()
        assert await service.turn(batch_id), "a request to give way is good for one turn"
    output, errors = await service.results(batch_id)
    assert output.keys() | errors.keys() == {"quick", "slow"}
    assert len(rig.worker.seen) == 2, "nothing is posted twice"


@dataclass(slots=True)
class Places:
    """Turns on a virtual clock: ``places`` of them at a time, each of 120 seconds unless it gives way."""

    places: int
    since: dict[str, int]
    tenants: dict[str, str]
    now_ms: int = 0
    turns: dict[str, int] = field(default_factory=dict[str, int])
    served: dict[str, int] = field(default_factory=dict[str, int])
    begun: Counter[str] = field(default_factory=Counter[str])

    def batches(self) -> list[OpenBatch]:
        return [
            OpenBatch(each, self.tenants[each], since, each in self.turns)
            for each, since in self.since.items()
        ]

    def look(self) -> None:
        for batch in to_give_way(self.batches(), self.served, self.now_ms):
            del self.turns[batch.batch_id]
        for each in [each for each, began in self.turns.items() if self.now_ms - began >= TURN_MS]:
            del self.turns[each]
        for batch in in_turn(self.batches(), self.served)[: self.places - len(self.turns)]:
            self.turns[batch.batch_id] = self.since[batch.batch_id] = self.now_ms
            self.served[batch.tenant] = self.now_ms
            self.begun[batch.tenant] += 1
        self.now_ms += LOOK_MS


@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    places=st.integers(1, 6),
    looks=st.integers(1, 40),
)
def test_a_tenant_that_comes_gets_a_turn_before_any_other_gets_a_second_one(
    counts: list[int], places: int, looks: int
) -> None:
    """However many batches the others have, and however long theirs would go on."""
    tenants = {f"{name}-{number}": f"t{name}" for name, count in enumerate(counts) for number in range(count)}
    sim = Places(places, dict.fromkeys(tenants, 0), tenants)
    for _ in range(looks):
        sim.look()
    sim.tenants["late"], sim.since["late"] = "late", sim.now_ms
    came_ms, before = sim.now_ms, Counter(sim.begun)
    while "late" not in sim.turns:
        sim.look()
        assert max((sim.begun - before).values(), default=0) <= max(2, places), "others go round meanwhile"
        rounds = len(counts) // places + 1
        assert sim.now_ms - came_ms <= WAITS_MS + rounds * (SHORTEST_TURN_MS + LOOK_MS) + 2 * LOOK_MS


def test_nobody_gives_way_while_all_have_as_many_turns_as_another_or_nobody_waits() -> None:
    running = [OpenBatch("a", "x", 0, True), OpenBatch("b", "x", 0, True)]
    assert to_give_way(running, {}, 10**6) == []
    same = OpenBatch("c", "x", 0, False)
    assert to_give_way([*running, same], {}, 10**6) == []
    just_came = OpenBatch("d", "y", 10**6 - 1, False)
    assert to_give_way([*running, just_came], {}, 10**6) == []
    assert to_give_way([*running, replace(just_came, since_ms=0)], {}, WAITS_MS) == [running[0]]
