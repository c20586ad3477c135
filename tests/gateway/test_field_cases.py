"""What gateways of the field got wrong (tests/field_cases.md, from case 25), where no other test tries it."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Rig, gateway_of, over, post_job, until
from tests.gateway.scripted_worker import MODEL, Script, card
from tests.gateway.sse_reader import Event, chat_text, events, parse
from tests.gateway.test_chat import CHAT
from tests.gateway.test_chat import URL as CHAT_URL
from tests.gateway.test_responses import HI
from tests.gateway.test_responses import URL as RESPONSES_URL
from tests.gateway.test_tenants import error_of

from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.messages import Job
from headway.queueing.protocol import Submitted
from headway.queueing.settings import QueueSettings
from headway.queueing.settling import settle

STREAM = CHAT | {"stream": True}
STREAMS = [(CHAT_URL, STREAM), (RESPONSES_URL, HI | {"stream": True})]


@pytest.mark.parametrize(("url", "body"), STREAMS)
async def test_case_25_readers_of_a_worker_that_died_are_told_the_end(url: str, body: dict[str, Any]) -> None:
    """Nobody else runs: neither another worker nor anybody who looks for dead ones but the reader."""
    queue = MemoryQueue(QueueSettings(lease_seconds=0.2, max_attempts=1, poll_seconds=0.05))
    await queue.heartbeat(card(), ttl_seconds=60)
    rig = Rig(queue, None)  # type: ignore[arg-type]  # it has no worker that lives
    async with rig.client(rig.app(first_event_seconds=30.0, read_wait_seconds=30.0)) as http:
        asking = asyncio.create_task(http.post(url, json=body))
        while not await queue.claim(MODEL, "w-dead", 1):  # it takes the job, and dies
            await asyncio.sleep(0.01)
        response = await asyncio.wait_for(asking, 10)
    assert (response.status_code, error_of(response)["code"]) == (500, "too_many_attempts")


async def test_case_25_a_reader_far_behind_still_gets_the_end() -> None:
    """Many times what one read brings lies between it and the terminal entry."""
    async with over(MemoryQueue(), Script(pieces=("x",) * 1500)) as rig, rig.client() as http:
        job_id = await post_job(rig)
        await rig.until_ended()
        got = parse((await http.get(f"/v1/jobs/{job_id}/stream")).text)
    assert [event.event for event in got] == ["tokens"] * 1500 + ["end"]
    assert len({event.id for event in got}) == len(got), "also within one millisecond no id comes twice"


@pytest.mark.parametrize("text", ["-1", "0x1", "1-", "1_0", "\u0661", "9" * 40, "1-0-0", " ", "1 OR 1"])
async def test_case_25_a_malformed_position_is_refused_and_replays_nothing(
    text: str, rig: Rig, http: httpx.AsyncClient
) -> None:
    job_id = await post_job(rig)
    made = (await http.post(RESPONSES_URL, json=HI)).json()["id"]
    header = {b"last-event-id": text.encode()}
    for path, ways in (
        (f"/v1/jobs/{job_id}/stream", {"after": text}),
        (f"{RESPONSES_URL}/{made}?stream=true", {"starting_after": text, "stream": "true"}),
    ):
        for asked in (http.get(path, headers=header), http.get(path, params=ways)):
            refused = await asked
            assert (refused.status_code, error_of(refused)["code"]) == (400, "invalid_cursor"), path


async def test_case_27_what_clients_drop_at_any_moment_leaves_no_place_taken() -> None:
    rng = Random(27)
    async with over(MemoryQueue(), Script(pieces=("x",) * 50, pace=lambda: asyncio.sleep(0.002))) as rig:
        await rig.queue.tenant_store.set("acme", {"concurrency": 20})
        app = rig.app(max_requests_per_tenant=30)
        async with rig.serve(app) as url, httpx.AsyncClient(base_url=url, timeout=30) as http:
            asked = [
                asyncio.create_task(http.post(path, json=body | {"tenant": "acme"}))
                for _ in range(4)
                for path, body in (*STREAMS, (CHAT_URL, CHAT), (RESPONSES_URL, HI))
            ]
            for each in rng.sample(asked, 12):
                await asyncio.sleep(rng.random() * 0.02)
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            await until(lambda: _open_streams(rig, app) == 0)
            limits = (await rig.queue.tenant_store.book()).limits_of("acme")
            async with asyncio.timeout(10):
                while (await rig.queue.quota_store.usage("acme", limits)).in_flight:
                    await settle(rig.queue, MODEL)  # as gateways and workers do twice a second
                    await asyncio.sleep(0.01)
            await rig.queue.tenant_store.set("acme", {"concurrency": 1})
            answered = await http.post(CHAT_URL, json=CHAT | {"tenant": "acme", "max_tokens": 1})
            assert answered.status_code == 200, answered.text


def _open_streams(rig: Rig, app: Any) -> float:
    value = gateway_of(app).metrics.registry.get_sample_value("headway_gateway_open_streams")
    assert value is not None
    return value


async def test_case_30_usage_is_sent_where_it_is_asked_for_and_nowhere_else(http: httpx.AsyncClient) -> None:
    silent = parse((await http.post(CHAT_URL, json=STREAM)).text)
    assert all("usage" not in event.json for event in silent[:-1])
    asked = STREAM | {"stream_options": {"include_usage": True}}
    told = parse((await http.post(CHAT_URL, json=asked)).text)
    assert [event.json["usage"] for event in told[:-2]] == [None] * (len(told) - 2)
    assert (told[-2].json["choices"], told[-2].json["usage"]["total_tokens"]) == ([], 12)


@pytest.mark.parametrize(("url", "body"), STREAMS)
async def test_case_32_each_token_is_with_its_reader_before_the_next_is_made(
    url: str, body: dict[str, Any]
) -> None:
    """So nothing on the way collects them: the worker makes a token only once the last one was read."""
    tickets = asyncio.Semaphore(1)
    pieces = tuple("abcdefgh")

    async def pace() -> None:
        await tickets.acquire()

    texts: list[str] = []
    async with (
        over(MemoryQueue(), Script(pieces=pieces, pace=pace)) as rig,
        rig.serve() as address,
        httpx.AsyncClient(base_url=address, timeout=10, headers={"Accept-Encoding": "gzip"}) as http,
        http.stream("POST", url, json=body) as response,
    ):
        assert "content-encoding" not in response.headers
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        async for event in events(response):
            if text := _text(event):
                texts.append(text)
                tickets.release()
    assert texts == list(pieces)


def _text(event: Event) -> str:
    if event.data == "[DONE]":
        return ""
    told: dict[str, Any] = json.loads(event.data)
    if "choices" in told:
        return chat_text([told])
    return str(told.get("delta", ""))


@pytest.mark.parametrize(("url", "body"), STREAMS)
async def test_case_36_a_post_repeated_under_its_key_is_one_job_and_one_answer(
    url: str, body: dict[str, Any], http: httpx.AsyncClient, rig: Rig
) -> None:
    await rig.queue.tenant_store.set("default", {"rpm": 100})
    key = {"Idempotency-Key": "order-1042"}
    answers = await asyncio.gather(*(http.post(url, json=body, headers=key) for _ in range(5)))
    assert len({answer.headers["x-headway-job-id"] for answer in answers}) == 1
    assert len({answer.text for answer in answers}) == 1 or url == CHAT_URL, "chat chunks carry their time"
    assert len(rig.worker.seen) == 1
    other = await http.post(url, json=body | {"metadata": {"a": "b"}}, headers=key)
    assert (other.status_code, error_of(other)["code"]) == (409, "idempotency_conflict")
    assert other.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("deadline", [1e-9, 0.001, 0.05])
@pytest.mark.parametrize(("url", "body"), [*STREAMS, (CHAT_URL, CHAT), (RESPONSES_URL, HI)])
async def test_case_40_a_deadline_that_passes_before_anybody_serves_it_is_never_a_500(
    url: str, body: dict[str, Any], deadline: float
) -> None:
    """Whatever passes it: the way into the queue, a queue that is full, a fleet that is not there or busy."""
    late = body | {"deadline_seconds": deadline}
    told = {}
    for name, settings, waiting, workers in (
        ("no worker", QueueSettings(), 0, 0),
        ("full", QueueSettings(max_queued_jobs=1), 1, 1),
        ("busy", QueueSettings(poll_seconds=0.02), 1, 1),
    ):
        queue = MemoryQueue(settings)
        for worker in range(workers):
            await queue.heartbeat(card(f"w{worker}"), ttl_seconds=60)
        for _ in range(waiting):
            await queue.submit(Job(model=MODEL, prompt="a"))
        rig = Rig(queue, None)  # type: ignore[arg-type]  # what is registered never claims anything
        async with rig.client(rig.app(read_wait_seconds=0.05, first_event_seconds=10.0)) as http:
            response = await asyncio.wait_for(http.post(url, json=late), 10)
        told[name] = (response.status_code, error_of(response)["code"])
        assert ("retry-after" in response.headers) == (response.status_code == 503), name
        assert response.headers.get("x-should-retry") == ("false" if response.status_code == 504 else None)
        assert sum((await queue.depth(MODEL)).queued.values()) == waiting, "what was late waits no more"
    assert told == {
        "no worker": (503, "no_worker"),
        "full": (503, "queue_full"),
        "busy": (504, "deadline_exceeded"),
    }


@pytest.mark.parametrize(("url", "body"), STREAMS)
async def test_case_40_a_deadline_that_passes_on_the_way_into_the_queue_is_never_a_500(
    url: str, body: dict[str, Any]
) -> None:
    """The server answers the submit only long after the deadline."""

    class Slow(MemoryQueue):
        async def submit(
            self, job: Job, *, key: str | None = None, reserved: str = "", asked: Job | None = None
        ) -> Submitted:
            submitted = await super().submit(job, key=key, reserved=reserved, asked=asked)
            await asyncio.sleep(0.2)
            return submitted

    queue = Slow()
    await queue.heartbeat(card(), ttl_seconds=60)
    rig = Rig(queue, None)  # type: ignore[arg-type]  # its worker never claims anything
    async with rig.client(rig.app(first_event_seconds=10.0)) as http:
        response = await asyncio.wait_for(http.post(url, json=body | {"deadline_seconds": 0.01}), 10)
    assert (response.status_code, error_of(response)["code"]) == (504, "deadline_exceeded")
