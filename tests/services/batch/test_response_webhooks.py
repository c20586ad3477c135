"""A tenant is told of a background response's end at least once, whoever is killed on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from openai.types.webhooks import (
    ResponseCancelledWebhookEvent,
    ResponseCompletedWebhookEvent,
    ResponseFailedWebhookEvent,
    ResponseIncompleteWebhookEvent,
)
from tests.gateway.conftest import Rig, over, until
from tests.gateway.scripted_worker import Script
from tests.services.batch.batch_fleet import BatchFleet
from tests.services.batch.webhook_receiver import Receiver, receiving

from headway.gateway import unanswered
from headway.gateway.response_ids import response_id_of
from headway.queueing.errors import NotNowError
from headway.queueing.events import EndReason, JobError, JobState
from headway.queueing.redis_queue import RedisQueue
from headway.queueing.webhook_store import EVENTS, RESPONSE_EVENTS, Webhook
from headway.services.batch.response_ends import MOST_PAUSE_MS, tell_response_ends
from headway.services.batch.webhook_delivery import deliver
from headway.services.batch.webhook_post import WebhookPost
from headway.services.batch.webhook_signature import new_secret


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


async def webhook_of(rig: Rig, receiver: Receiver, *events: str) -> Webhook:
    webhook = Webhook("wh_1", "acme", receiver.url, new_secret(), events or EVENTS)
    await rig.queue.webhook_store.put(webhook)
    return webhook


async def post(rig: Rig, **fields: object) -> str:
    """A background response, accepted."""
    asked = {"model": "tiny", "input": "hi", "background": True, "tenant": "acme"} | fields
    async with rig.client() as http:
        response = await http.post("/v1/responses", json=asked)
    assert response.status_code == 200, response.text
    response_id: str = response.json()["id"]
    return response_id


async def awaited(rig: Rig) -> tuple[str, ...]:
    return await rig.queue.webhook_store.awaited(2**52, 10)


async def due(rig: Rig) -> tuple[str, ...]:
    await tell_response_ends(rig.queue)
    return await rig.queue.webhook_store.due(await rig.queue.batch_store.now_ms() + 1, 10)


@pytest.mark.parametrize(
    ("script", "fields", "kind"),
    [
        (Script(), {}, ResponseCompletedWebhookEvent),
        (Script(), {"max_output_tokens": 1}, ResponseIncompleteWebhookEvent),
        (Script(hold_at=0), {}, ResponseCancelledWebhookEvent),
        (Script(reason=EndReason.ERROR, error=JobError("x", "y")), {}, ResponseFailedWebhookEvent),
    ],
)
async def test_each_end_of_a_background_response_is_told_in_openais_words(
    rig: Rig, receiver: Receiver, script: Script, fields: dict[str, Any], kind: type
) -> None:
    rig.worker.script = script
    webhook = await webhook_of(rig, receiver)
    response_id = await post(rig, **fields)
    if kind is ResponseCancelledWebhookEvent:
        assert await due(rig) == (), "it runs"
        await rig.until_seen()
        async with rig.client() as http:
            await http.post(f"/v1/responses/{response_id}/cancel")
    await rig.until_ended()
    (job_id,) = await awaited(rig)
    await rig.queue.webhook_store.await_end(job_id, 0)  # now, not at the pace of the service
    (message_id,) = await due(rig)
    await deliver(rig.queue, WebhookPost(allows_private=True), message_id)
    ((headers, body),) = receiver.got
    event = openai.OpenAI(api_key="none", webhook_secret=webhook.secret).webhooks.unwrap(body, headers)
    assert isinstance(event, kind)
    assert orjson.loads(body)["data"] == {"id": response_id}
    assert await awaited(rig) == await due(rig) == ()


async def test_a_streamed_background_response_is_told_as_well(rig: Rig, receiver: Receiver) -> None:
    await webhook_of(rig, receiver)
    async with rig.client() as http:
        asked = {"model": "tiny", "input": "hi", "background": True, "tenant": "acme", "stream": True}
        assert "response.completed" in (await http.post("/v1/responses", json=asked)).text
    assert len(await due(rig)) == 1


@pytest.mark.parametrize(
    ("fields", "events"),
    [
        ({"background": False}, RESPONSE_EVENTS),
        ({}, ("batch.completed",)),
        ({"tenant": "other"}, RESPONSE_EVENTS),
    ],
)
async def test_what_nobody_asked_to_be_told_is_not_kept_in_mind(
    rig: Rig, receiver: Receiver, fields: dict[str, Any], events: tuple[str, ...]
) -> None:
    await webhook_of(rig, receiver, *events)
    await post(rig, **fields)
    await rig.until_ended()
    assert await awaited(rig) == await due(rig) == ()


async def test_an_event_that_was_not_asked_for_is_not_sent(rig: Rig, receiver: Receiver) -> None:
    await webhook_of(rig, receiver, "response.failed")
    await post(rig)
    await rig.until_ended()
    assert await due(rig) == await awaited(rig) == ()


async def test_an_end_told_twice_is_one_message(rig: Rig, receiver: Receiver) -> None:
    """As after a kill between the message and its being struck off."""
    await webhook_of(rig, receiver)
    await post(rig)
    await rig.until_ended()
    (job_id,) = await awaited(rig)
    first = await due(rig)
    await rig.queue.webhook_store.await_end(job_id, 0)
    assert len(first) == 1
    assert await due(rig) == first


async def test_a_deleted_response_is_told_of_no_more_and_a_running_one_is_looked_at_seldom(
    rig: Rig, receiver: Receiver
) -> None:
    await webhook_of(rig, receiver)
    gone = await post(rig)
    await rig.until_ended()
    async with rig.client() as http:
        await http.delete(f"/v1/responses/{gone}")
    rig.worker.script = Script(hold_at=0)
    await post(rig)
    await rig.until_seen(2)
    assert await due(rig) == ()
    (job_id,) = await awaited(rig)
    now_ms = await rig.queue.batch_store.now_ms()
    assert await rig.queue.webhook_store.awaited(now_ms, 10) == ()
    assert await rig.queue.webhook_store.awaited(now_ms + MOST_PAUSE_MS, 10) == (job_id,)


async def test_a_response_whose_end_could_not_be_written_down_is_not_accepted_and_taken_back(
    rig: Rig, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise NotNowError("the server is full")

    monkeypatch.setattr(unanswered, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(rig.queue.webhook_store, "await_end", full)
    rig.worker.script = Script(hold_at=0)
    await webhook_of(rig, receiver)
    async with rig.client() as http:
        asked = {"model": "tiny", "input": "hi", "background": True, "tenant": "acme"}
        assert (await http.post("/v1/responses", json=asked)).status_code == 503
        await rig.until_ended()
    assert list(rig.worker.ended.values()) == [EndReason.CANCELLED]


async def test_a_sender_that_is_killed_in_the_middle_is_followed_by_one_that_arrives(
    redis_url: str, tmp_path: Path, receiver: Receiver
) -> None:
    receiver.answers.clear()
    queue = RedisQueue(redis_url)
    fleet = BatchFleet(redis_url, tmp_path)
    try:
        async with over(queue, Script()) as rig:
            webhook = await webhook_of(rig, receiver)
            sender = await asyncio.to_thread(fleet.start_batch_worker)
            response_id = await post(rig)
            await until(lambda: bool(receiver.got), seconds=15)
            await asyncio.to_thread(fleet.kill, sender)
            receiver.answers.set()
            ((headers, _),) = receiver.got
            # The dead one's turn lapses after 40 s; here nobody waits for that.
            for what in ("send", "asked"):
                await queue.batch_store.end_turn(f"{what}:{headers['webhook-id']}", "")
            await asyncio.to_thread(fleet.start_batch_worker)
            async with asyncio.timeout(15):
                while await due(rig):
                    await asyncio.sleep(0.05)
        again, body = receiver.got[-1]
        assert len(receiver.got) == 2
        assert again["webhook-id"] == headers["webhook-id"]
        event = openai.OpenAI(api_key="none", webhook_secret=webhook.secret).webhooks.unwrap(body, again)
        assert isinstance(event, ResponseCompletedWebhookEvent)
        assert event.data.id == response_id
    finally:
        await asyncio.to_thread(fleet.close)
        await queue.close()


async def test_a_response_whose_record_is_broken_stops_nobody_else(
    rig: Rig, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await webhook_of(rig, receiver)
    broken, whole = await post(rig), await post(rig)
    result = rig.queue.result

    async def result_or_fault(job_id: str) -> Any:
        if response_id_of(job_id) == broken:
            raise ValueError("what somebody wrote there is no result")
        return await result(job_id)

    monkeypatch.setattr(rig.queue, "result", result_or_fault)
    for job_id in await awaited(rig):
        while (await rig.queue.status(job_id)).state is not JobState.FINISHED:
            await asyncio.sleep(0.005)
        await rig.queue.webhook_store.await_end(job_id, 0)
    (message_id,) = await due(rig)
    message = await rig.queue.webhook_store.message(message_id)
    assert message is not None
    assert whole in message.body
    assert len(await awaited(rig)) == 1, "it is looked at again"
