"""Records of files and batches: each fact is written once, and memory and server keep the same promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import pytest

from headway.queueing.batch import Checked, NewBatch, Outcome, Part, Tally
from headway.queueing.batch_store import BatchStore
from headway.queueing.keys import FILES_EXPIRING, BatchKeys, FileKeys
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.protocol import Queue
from headway.queueing.redis_queue import RedisQueue
from headway.queueing.stored_file import StoredFile
from headway.queueing.webhook_store import Webhook, WebhookMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RedisServer

FAR_MS = 4_000_000_000_000


@pytest.fixture(params=["memory", "redis7", "valkey9"])
async def queue(
    request: pytest.FixtureRequest, shared_redis: Callable[[str], RedisServer]
) -> AsyncGenerator[Queue]:
    made: Queue = MemoryQueue() if request.param == "memory" else RedisQueue(shared_redis(request.param).url)
    yield made
    await made.close()


@pytest.fixture
def store(queue: Queue) -> BatchStore:
    return queue.batch_store


def new_batch(number: int = 1, tenant: str = "acme") -> NewBatch:
    return NewBatch(f"batch_{number:08}", tenant, "file-1", "/v1/completions", "24h", 1000 + number, FAR_MS)


def a_file(number: int = 1, expires_ms: int = FAR_MS) -> StoredFile:
    return StoredFile(f"file-{number:08}", "acme", "a", "batch", 3, 1000 + number, expires_ms, "files/x")


async def test_a_queue_has_one_name_for_good(store: BatchStore, queue: Queue) -> None:
    names = set(await asyncio.gather(*(store.queue_id() for _ in range(8))))
    assert names == {await queue.batch_store.queue_id()}
    assert await MemoryQueue().batch_store.queue_id() not in names


async def test_a_batch_goes_through_its_states_and_back_to_none(store: BatchStore) -> None:
    asked = new_batch()
    await store.add_batch(asked)

    async def state() -> str:
        batch = await store.batch(asked.batch_id)
        assert batch is not None
        assert batch.asked == asked
        return batch.state.value

    assert await state() == "validating"
    await store.mark_checked(asked.batch_id, Checked(5, 10, 4, (0, 40, 80), "tiny"))
    assert await state() == "in_progress"
    await store.mark_finalizing(asked.batch_id)
    assert await state() == "finalizing"
    await store.cancel_batch(asked.batch_id)
    assert await state() == "cancelling"
    assert await store.end_batch(asked.batch_id, Outcome("completed", 9, Tally(10, 0, 1, 2, 3)))
    assert await state() == "completed"
    await store.cancel_batch(asked.batch_id)
    assert await state() == "completed"
    await store.forget_batch(asked)
    assert await store.batch(asked.batch_id) is None


async def test_of_two_ends_the_first_counts_and_each_side_learns_which(store: BatchStore) -> None:
    await store.add_batch(new_batch())
    first, second = Outcome("expired", 1), Outcome("completed", 2)
    assert await store.end_batch("batch_00000001", first)
    assert not await store.end_batch("batch_00000001", second)
    assert await store.end_batch("batch_00000001", first), "a repeat whose reply was lost learns that it won"


async def test_a_part_is_committed_once(store: BatchStore) -> None:
    ours, theirs = Part(Tally(3), "a", ""), Part(Tally(3), "b", "")
    assert await store.commit_part("batch_1", 0, ours)
    assert not await store.commit_part("batch_1", 0, theirs)
    assert await store.commit_part("batch_1", 0, ours)
    assert await store.commit_part("batch_1", 7, theirs)
    assert await store.parts("batch_1") == {0: ours, 7: theirs}
    await store.drop_parts("batch_1")
    assert await store.parts("batch_1") == {}


async def test_lists_go_by_creation_page_by_page(store: BatchStore) -> None:
    for number in range(1, 6):
        await store.add_batch(new_batch(number))
        await store.add_file(a_file(number))
    await store.add_batch(new_batch(9, "other"))
    page = await store.batch_page("acme", None, 2)
    assert page is not None
    assert (page.ids, page.has_more) == (("batch_00000005", "batch_00000004"), True)
    page = await store.batch_page("acme", "batch_00000002", 2)
    assert page is not None
    assert (page.ids, page.has_more) == (("batch_00000001",), False)
    files = await store.file_page("acme", "file-00000002", 10, "asc")
    assert files is not None
    assert files.ids == ("file-00000003", "file-00000004", "file-00000005")
    assert await store.file_page("acme", "file-none", 10, "asc") is None
    assert (await store.open_batches())[0] == "batch_00000001"
    assert await store.batches_until(1002, 10) == ("batch_00000001", "batch_00000002")


async def test_an_expired_file_is_gone_and_then_found_by_who_tidies_up(store: BatchStore) -> None:
    await store.add_file(a_file(1, expires_ms=5))
    await store.add_file(a_file(2))
    assert await store.file("file-00000001") is None
    assert [file.file_id for file in await store.files(["file-00000001", "file-00000002"])] == [
        "file-00000002"
    ]
    (expired,) = await store.expired_files(10)
    assert expired.file_id == "file-00000001"
    await store.remove_file(expired)
    assert await store.expired_files(10) == []
    assert await store.count_files("acme") == 1


async def test_records_that_cannot_be_read_do_not_hide_those_behind_them(store: BatchStore) -> None:
    for number in range(5):
        await store._commands.call("SET", FileKeys.record(f"file-broken{number}"), b"{")
        await store._commands.call("ZADD", FILES_EXPIRING, 1, f"file-broken{number}")
    await store._commands.call("ZADD", FILES_EXPIRING, 1, "file-lost")
    for number in (1, 2, 3):
        await store.add_file(a_file(number, expires_ms=4 + number))
    assert [file.file_id[-1] for file in await store.expired_files(2)] == ["1", "2"]
    for number in (1, 2, 3):
        await store.remove_file(a_file(number))
    assert await store.expired_files(2) == []


async def test_the_oldest_open_batch_is_the_one_accepted_first_whatever_turns_it_had_and_however_it_reads(
    store: BatchStore,
) -> None:
    assert await store.oldest_open_ms() is None
    for number in (3, 1, 2):
        await store.add_batch(new_batch(number))
    first = next(batch for batch in await store.turns.open({}) if batch.batch_id == "batch_00000001")
    await store.turns.begin(first, 5000)
    assert await store.oldest_open_ms() == 1001
    await store._commands.call("HSET", BatchKeys("batch_00000001").record, "created", b"{")
    assert await store.oldest_open_ms() == 1001
    await store.close_batch("batch_00000001")
    assert await store.oldest_open_ms() == 1002


async def test_batches_are_listed_from_any_place_on(store: BatchStore) -> None:
    for number in (1, 2, 3):
        await store.add_batch(new_batch(number))
    assert await store.batches_until(1002, 10, after=1) == ("batch_00000002",)
    assert await store.batches_until(1002, 10, after=2) == ()


async def test_a_turn_has_one_holder(store: BatchStore) -> None:
    assert await store.take_turn("x", "a", 60)
    assert not await store.take_turn("x", "b", 60)
    assert await store.keep_turn("x", "a", 60)
    assert not await store.keep_turn("x", "b", 60)
    await store.end_turn("x", "b")
    assert await store.has_turn("x")
    await store.end_turn("x", "a")
    assert not await store.has_turn("x")
    assert await store.take_turn("x", "b", 60)


async def test_webhooks_and_their_messages(queue: Queue) -> None:
    store = queue.webhook_store
    webhook = Webhook("wh_1", "acme", "https://example.org", "whsec_x", ("batch.failed",), 5)
    await store.put(webhook)
    assert await store.of_tenant("acme") == (webhook,)
    assert await store.webhook("acme", "wh_1") == webhook
    assert await store.webhook("other", "wh_1") is None
    message = WebhookMessage("msg_1", "acme", "wh_1", "{}", 7)
    await store.post(message, 100, 60_000)
    assert await store.due(99, 10) == ()
    assert await store.due(100, 10) == ("msg_1",)
    assert await store.message("msg_1") == message
    await store.drop("msg_1")
    assert await store.message("msg_1") is None
    assert await store.remove("acme", "wh_1")
    assert not await store.remove("acme", "wh_1")
