"""Responses in the background: fetched, cancelled, followed, and resumed after any of their events."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from openai import AsyncOpenAI
from tests.gateway.conftest import Rig, over
from tests.gateway.scripted_worker import Script
from tests.gateway.sse_reader import events as live_events
from tests.gateway.test_responses import HI, KINDS, URL, answered, streamed
from tests.gateway.test_tenants import error_of

from headway.gateway.response_ids import job_id_of
from headway.queueing.events import EndReason
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.settings import QueueSettings


async def test_a_background_response_is_fetched_later(client: AsyncOpenAI, rig: Rig) -> None:
    made = await client.responses.create(model="tiny", input="hi", background=True)
    assert made.status in {"queued", "in_progress", "completed"}
    assert made.background is True
    await rig.until_ended()
    answer = await client.responses.retrieve(made.id)
    assert (answer.status, answer.output_text) == ("completed", "Hello, world!")
    status = await rig.queue.status(job_id_of(made.id))
    assert (status.on_disconnect, status.priority) == ("detach", "standard")


@pytest.mark.parametrize("hold_at", [0, 3])
async def test_a_cancelled_response_says_so_at_once(hold_at: int) -> None:
    async with (
        over(MemoryQueue(), Script(hold_at=hold_at)) as rig,
        rig.serve() as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        made = await client.responses.create(model="tiny", input="hi", background=True)
        await rig.until_seen()
        cancelled = await client.responses.cancel(made.id)
        assert (cancelled.status, cancelled.error) == ("cancelled", None)
        assert (await client.responses.cancel(made.id)).status == "cancelled", "again changes nothing"


async def test_a_stream_goes_on_after_any_of_its_events(client: AsyncOpenAI, rig: Rig) -> None:
    made = await client.responses.create(model="tiny", input="hi", background=True)
    await rig.until_ended()
    async with rig.client() as http:
        everything = await streamed(http, made.id)
        assert [event.event for event in everything] == KINDS
        for index, event in enumerate(everything[:-1]):
            number = int(event.id or "")
            assert await streamed(http, made.id, number) == everything[index + 1 :]
        done = await http.get(f"{URL}/{made.id}", params={"stream": "true"}, headers={"Last-Event-ID": "83"})
        assert done.status_code == 204
        beyond = await http.get(f"{URL}/{made.id}", params={"stream": "true", "starting_after": "84"})
        assert (beyond.status_code, error_of(beyond)["code"]) == (400, "invalid_cursor")
    resumed = await client.responses.retrieve(made.id, stream=True, starting_after=48)
    assert [event.sequence_number async for event in resumed] == [60, 72, 73, 74, 83]


async def test_a_reader_that_leaves_a_background_stream_comes_back_for_the_rest() -> None:
    gate = asyncio.Event()

    async def pace() -> None:
        await gate.wait()

    async with (
        over(MemoryQueue(), Script(pace=pace)) as rig,
        rig.serve() as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        body = HI | {"background": True, "stream": True}
        async with http.stream("POST", URL, json=body) as response:
            first = await anext(live_events(response))
        response_id = first.json["response"]["id"]
        gate.set()
        rest = await streamed(http, response_id, int(first.id or ""))
        assert [first.event, *(event.event for event in rest)] == KINDS
    assert list(rig.worker.ended.values()) == [EndReason.STOP]


async def test_once_its_events_are_gone_a_stream_starts_over_or_is_fetched() -> None:
    now = 1_700_000_000.0
    queue = MemoryQueue(QueueSettings(stream_retention_seconds=10), clock=lambda: now)
    async with over(queue, Script()) as rig, rig.client() as http:
        made = await answered(http)
        now += 20
        late = await http.get(f"{URL}/{made['id']}", params={"stream": "true", "starting_after": "48"})
        assert (late.status_code, error_of(late)["code"]) == (404, "events_not_kept")
        events = await streamed(http, made["id"])
        assert events[-1].json["response"]["output"] == made["output"]
