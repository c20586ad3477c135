"""A stream never just falls silent, and its reader can always go on."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from tests.gateway.conftest import Rig, gateway_of, over, post_job, until
from tests.gateway.scripted_worker import Script
from tests.gateway.sse_reader import Event, chat_text, events, parse
from tests.gateway.test_chat import CHAT
from tests.gateway.test_chat import URL as CHAT_URL

from headway.queueing.errors import QueueUnavailableError
from headway.queueing.events import Cursor, EndEvent, EndReason, JobError, StreamEvent
from headway.queueing.memory_queue import MemoryQueue

STREAM = CHAT | {"stream": True}


@pytest.mark.parametrize(
    ("reason", "error", "code"),
    [
        (EndReason.ERROR, JobError("worker_lost", "three workers died of it"), "worker_lost"),
        (EndReason.ERROR, None, "internal_error"),
        (EndReason.DEADLINE, None, "deadline_exceeded"),
        (EndReason.CANCELLED, None, "cancelled"),
    ],
)
async def test_a_bad_end_after_tokens_is_an_error_frame_without_done(
    http: httpx.AsyncClient, rig: Rig, reason: EndReason, error: JobError | None, code: str
) -> None:
    rig.worker.script = Script(reason=reason, error=error, tail="?")
    response = await http.post(CHAT_URL, json=STREAM)
    assert response.status_code == 200
    got = parse(response.text)
    assert chat_text([event.json for event in got[:-1]]) == "Hello, world!?"
    assert all(choice["finish_reason"] is None for event in got[:-1] for choice in event.json["choices"])
    assert got[-1].json["error"]["code"] == code
    assert "[DONE]" not in response.text


async def test_text_released_by_the_end_is_streamed(http: httpx.AsyncClient, rig: Rig) -> None:
    rig.worker.script = Script(tail=" bye")
    got = parse((await http.post(CHAT_URL, json=STREAM)).text)
    assert chat_text([event.json for event in got[:-1]]) == "Hello, world! bye"
    assert got[-2].json["choices"][0]["finish_reason"] == "stop"


async def test_one_failed_prompt_ends_the_request_and_cancels_the_others(rig: Rig) -> None:
    rig.worker.script = Script(hold_at=2)
    async with rig.client() as http:
        asking = asyncio.create_task(
            http.post("/v1/completions", json={"model": "tiny", "prompt": ["a", "b"], "stream": True})
        )
        await rig.until_seen(2)
        first, second = sorted(rig.worker.claimed)
        await rig.queue.cancel(first, "operator")
        response = await asking
    assert parse(response.text)[-1].json["error"]["code"] == "cancelled"
    await rig.until_ended(2)
    assert rig.worker.ended == {first: EndReason.CANCELLED, second: EndReason.CANCELLED}


async def test_a_silent_stream_carries_pings_from_acceptance_on(rig: Rig) -> None:
    rig.worker.script = Script(hold_at=0)
    app = rig.app(first_event_seconds=0.05, ping_seconds=0.05, read_wait_seconds=0.02)
    async with (
        rig.serve(app) as url,
        httpx.AsyncClient(base_url=url) as http,
        http.stream("POST", CHAT_URL, json=STREAM) as response,
    ):
        assert response.status_code == 200
        seen = ""
        async for text in response.aiter_text():
            seen += text
            if seen.count(": ping\n\n") >= 3:
                break
    assert set(seen.split("\n\n")) == {": ping", ""}


async def asgi_writes(app: FastAPI, path: str) -> list[bytes]:
    """The bodies of each ASGI message that answers a GET."""
    bodies: list[bytes] = []
    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    requests: asyncio.Queue[Any] = asyncio.Queue()
    requests.put_nowait({"type": "http.request", "body": b"", "more_body": False})

    async def send(message: Any) -> None:
        bodies.append(message.get("body", b""))

    await app(scope, requests.get, send)
    return bodies


async def test_entries_that_piled_up_go_out_in_one_write(rig: Rig) -> None:
    rig.worker.script = Script(pieces=("a",) * 100)
    job_id = await post_job(rig)
    await rig.until_ended()
    writes = await asgi_writes(rig.app(), f"/v1/jobs/{job_id}/stream")
    assert len([body for body in writes if body]) == 1


async def test_unforeseen_trouble_is_told_not_hidden(rig: Rig) -> None:
    class Broken(MemoryQueue):
        async def read(self, job_id: str, after: Cursor, *, wait_seconds: float) -> tuple[StreamEvent, ...]:
            if after.tokens >= 2:
                raise RuntimeError("a bug")
            return await super().read(job_id, after, wait_seconds=wait_seconds)

    async with over(Broken(), Script(hold_at=2)) as broken, broken.client() as http:
        got = parse((await http.post(CHAT_URL, json=STREAM)).text)
        assert got[-1].json["error"]["code"] == "internal_error"
        await broken.until_ended()
        assert list(broken.worker.ended.values()) == [EndReason.CANCELLED]
        whole = await http.post(CHAT_URL, json=CHAT)
        assert whole.status_code == 500
        assert whole.json()["error"]["code"] == "internal_error"


async def test_a_stream_without_its_end_is_told_and_not_read_for_ever() -> None:
    class Endless(MemoryQueue):
        reads = 0

        async def read(self, job_id: str, after: Cursor, *, wait_seconds: float) -> tuple[StreamEvent, ...]:
            self.reads += 1
            events = await super().read(job_id, after, wait_seconds=wait_seconds)
            return tuple(event for event in events if not isinstance(event, EndEvent))

    queue = Endless()
    async with over(queue, Script()) as rig, rig.client() as http:
        got = parse((await http.post(CHAT_URL, json=STREAM)).text)
        assert got[-1].json["error"]["code"] == "stream_damaged"
        whole = await http.post(CHAT_URL, json=CHAT)
        assert (whole.status_code, whole.json()["error"]["code"]) == (500, "stream_damaged")
        job_id = await post_job(rig)
        await rig.until_ended(3)
        got = parse((await http.get(f"/v1/jobs/{job_id}/stream")).text)
        assert (got[-1].event, got[-1].json["error"]["code"]) == ("error", "stream_damaged")
        assert (await http.get(f"/v1/jobs/{job_id}/result")).status_code == 200
    assert queue.reads < 40


class Away(MemoryQueue):
    """A queue whose server can be away."""

    is_away = False

    async def read(self, job_id: str, after: Cursor, *, wait_seconds: float) -> tuple[StreamEvent, ...]:
        if self.is_away:
            raise QueueUnavailableError("the server is away", retry_after_seconds=0.01)
        events = await super().read(job_id, after, wait_seconds=min(wait_seconds, 0.01))
        if self.is_away:
            raise QueueUnavailableError("the server is away", retry_after_seconds=0.01)
        return events


async def test_a_stream_outlives_a_short_outage_of_the_queue() -> None:
    queue = Away()
    async with over(queue, Script(hold_at=5)) as rig:
        app = rig.app()
        async with (
            rig.serve(app) as url,
            httpx.AsyncClient(base_url=url) as http,
            http.stream("POST", CHAT_URL, json=STREAM) as response,
        ):
            got: list[Event] = []
            async for event in events(response):
                got.append(event)
                if len(got) == 2:
                    queue.is_away = True
                    asyncio.get_running_loop().call_later(0.1, setattr, queue, "is_away", False)
                if len(got) == 6:
                    break
    assert chat_text([event.json for event in got]) == "Hello, world!"


async def test_a_long_outage_ends_the_stream_with_a_reason() -> None:
    queue = Away()
    async with over(queue, Script(hold_at=5)) as rig:
        app = rig.app(outage_seconds=0.1, cancel_seconds=0.1)
        async with (
            rig.serve(app) as url,
            httpx.AsyncClient(base_url=url) as http,
            http.stream("POST", CHAT_URL, json=STREAM) as response,
        ):
            got: list[Event] = []
            async for event in events(response):
                queue.is_away = True
                got.append(event)
    assert got[-1].json["error"]["code"] == "queue_unavailable"


async def test_a_stalled_reader_holds_one_batch_and_loses_nothing(rig: Rig) -> None:
    """The pull stops when the socket is full: what waits stays in the queue, not in the gateway."""
    tokens = 3000
    reads: list[int] = []

    class Counting(MemoryQueue):
        async def read(self, job_id: str, after: Cursor, *, wait_seconds: float) -> tuple[StreamEvent, ...]:
            batch = await super().read(job_id, after, wait_seconds=wait_seconds)
            reads.append(len(batch))
            return batch

    async with over(Counting(), Script(pieces=("x" * 1000,) * tokens)) as counted:
        job_id = await post_job(counted)
        await counted.until_ended()
        async with counted.serve() as url:
            host, port = url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 262_144)
            writer.write(f"GET /v1/jobs/{job_id}/stream HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            await settled(reads)
            held = sum(reads)
            assert held < tokens / 2
            gathered = bytearray()
            while b"event: end" not in gathered[-2000:]:
                gathered += await reader.read(1 << 16)
            writer.close()
    assert gathered.count(b'"text":"' + b"x" * 1000 + b'"') == tokens
    assert max(reads) <= 256


async def settled(values: list[int]) -> None:
    seen = -1
    while seen != len(values):
        seen = len(values)
        await asyncio.sleep(0.2)


async def test_when_the_gateway_ends_streams_say_where_their_job_goes_on(rig: Rig) -> None:
    rig.worker.script = Script(hold_at=3)
    app = rig.app()
    async with rig.serve(app) as url, httpx.AsyncClient(base_url=url) as http:
        whole = asyncio.create_task(http.post(CHAT_URL, json=CHAT))
        async with http.stream("POST", CHAT_URL, json=STREAM) as response:
            got: list[Event] = []
            async for event in events(response):
                got.append(event)
                if len(got) == 4:
                    await rig.until_seen(2)
                    gateway_of(app).stopping.drain()
                    assert (await http.get("/readyz")).status_code == 503
                    refused = await http.post(CHAT_URL, json=CHAT)
                    assert refused.status_code == 503
                    assert refused.headers["retry-after"]
                    gateway_of(app).stopping.end()
        error = got[-1].json["error"]
        assert error["code"] == "shutting_down"
        job_id = response.headers["x-headway-job-id"]
        assert f"/v1/jobs/{job_id}/stream" in error["message"]
        assert (await whole).status_code == 503
    assert rig.worker.ended == {}, "the jobs live on"


async def test_a_server_that_stops_on_its_own_still_ends_streams_with_a_frame(rig: Rig) -> None:
    rig.worker.script = Script(hold_at=3)
    got: list[Event] = []
    async with httpx.AsyncClient() as http:
        async with rig.serve(graceful_seconds=1) as url:
            request = http.build_request("POST", url + CHAT_URL, json=STREAM)
            response = await http.send(request, stream=True)
            reading = asyncio.create_task(collect(response, got))
            await rig.until_seen()
            await until(lambda: len(got) >= 4)
        await reading
    assert got[-1].json["error"]["code"] == "shutting_down"


async def collect(response: httpx.Response, into: list[Event]) -> None:
    async for event in events(response):
        into.append(event)  # noqa: PERF401 # the test looks at the list while it grows
    await response.aclose()
