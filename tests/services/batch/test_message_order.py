"""A tenant whose receiver is slow holds up nobody else's messages or batches, however many it gets."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import asdict
from pathlib import Path

import orjson
import pytest

from headway.queueing.keys import WebhookKeys
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.webhook_store import Webhook, WebhookMessage
from headway.services.batch import errands as errands_module
from headway.services.batch import message_order
from headway.services.batch.errands import SENDS_AT_ONCE, Errands
from headway.services.batch.message_order import OF_A_TENANT, STEPS_ASIDE_MS, let_go, messages_to_send
from headway.services.batch.settings import BatchSettings
from headway.services.batch.webhook_delivery import deliver
from headway.services.batch.webhook_post import WebhookPost

KEEP_MS = 3_600_000


async def write(queue: MemoryQueue, tenant: str, count: int, due_ms: int) -> list[str]:
    ids = [f"msg_{tenant}_{number:02}" for number in range(count)]
    for each in ids:
        await queue.webhook_store.post(WebhookMessage(each, tenant, "wh_1", "{}", due_ms), due_ms, KEEP_MS)
    return ids


async def test_a_tenant_has_few_tries_at_a_time_and_others_theirs_beside_them() -> None:
    queue = MemoryQueue()
    now_ms = await queue.batch_store.now_ms()
    many = await write(queue, "many", 20, now_ms - 1000)
    one = await write(queue, "one", 1, now_ms)
    first = await messages_to_send(queue, now_ms)
    assert set(first) == {*many[:OF_A_TENANT], *one}
    assert await messages_to_send(queue, now_ms) == (), "these are under way"
    await queue.webhook_store.drop(many[0])
    await let_go(queue, many[0], "many")
    assert await messages_to_send(queue, now_ms) == (many[OF_A_TENANT],)


async def test_a_message_that_cannot_be_sent_here_is_asked_for_again() -> None:
    queue = MemoryQueue()
    now_ms = await queue.batch_store.now_ms()
    (message,) = await write(queue, "one", 1, now_ms)
    assert await messages_to_send(queue, now_ms) == (message,)
    await let_go(queue, message, "one")
    assert await messages_to_send(queue, now_ms) == (message,)


async def test_a_try_lets_the_next_one_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WebhookPost, "post", lambda *_: None)
    queue = MemoryQueue()
    await queue.webhook_store.put(Webhook("wh_1", "many", "https://example.org/", "whsec_" + "A" * 32))
    now_ms = await queue.batch_store.now_ms()
    left = set(await write(queue, "many", 7, now_ms))
    while chosen := await messages_to_send(queue, now_ms):
        for each in chosen:
            left.remove(each)
            await deliver(queue, WebhookPost(allows_private=False), each)
    assert not left


async def test_what_waits_behind_more_than_one_look_sees_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_order, "LOOKED_AT", 10)
    queue = MemoryQueue()
    now_ms = await queue.batch_store.now_ms()
    await write(queue, "many", 25, now_ms - 1000)
    (last,) = await write(queue, "one", 1, now_ms)
    looks = [await messages_to_send(queue, now_ms) for _ in range(4)]
    assert last in {each for chosen in looks for each in chosen}
    assert len(await queue.webhook_store.due(now_ms + STEPS_ASIDE_MS, 100)) == 26, "none is lost"


async def test_a_message_that_nobody_can_read_stops_none_behind_it() -> None:
    queue = MemoryQueue()
    now_ms = await queue.batch_store.now_ms()
    await write(queue, "one", 3, now_ms)
    for number, text in enumerate((b"no json", b"[]")):
        await queue.batch_store._commands.call("SET", WebhookKeys.message(f"msg_one_{number:02}"), text)
    assert await messages_to_send(queue, now_ms) == ("msg_one_02",)


async def test_a_message_of_a_newer_version_is_sent() -> None:
    queue = MemoryQueue()
    now_ms = await queue.batch_store.now_ms()
    (message,) = await write(queue, "one", 1, now_ms)
    known = WebhookMessage(message, "one", "wh_1", "{}", now_ms)
    text = orjson.dumps({**asdict(known), "what_is_new": 1})
    await queue.batch_store._commands.call("SET", WebhookKeys.message(message), text)
    assert await messages_to_send(queue, now_ms) == (message,)


async def test_a_message_that_has_expired_leaves_the_line() -> None:
    queue = MemoryQueue()
    now_ms = await queue.batch_store.now_ms()
    message = WebhookMessage("msg_old", "one", "wh_1", "{}", now_ms)
    await queue.webhook_store.post(message, now_ms, 1)
    await asyncio.sleep(0.005)
    assert await messages_to_send(queue, now_ms) == ()
    assert await queue.webhook_store.due(now_ms, 10) == ()


def test_a_process_sends_so_many_at_once_and_hands_the_rest_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each try has a thread of the pool; those of the turns, and of the looks, are not theirs."""
    is_slow, queue = threading.Event(), MemoryQueue()

    async def slowly(*_: object) -> None:
        await asyncio.to_thread(is_slow.wait)

    async def close(*_: object) -> None:
        return

    monkeypatch.setattr(errands_module, "deliver", slowly)
    monkeypatch.setattr(errands_module, "open_queue", lambda _: queue)
    monkeypatch.setattr(errands_module, "close_queue", close)
    errands = Errands(BatchSettings(redis_url="redis://127.0.0.1:1", files=str(tmp_path)))
    threads = [threading.Thread(target=errands.send, args=(f"msg_{n}",)) for n in range(SENDS_AT_ONCE)]
    try:
        for thread in threads:
            thread.start()
        assert not errands.send("msg_more")
    finally:
        is_slow.set()
        for thread in threads:
            thread.join()
    assert errands.send("msg_more")
