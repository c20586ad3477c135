"""A client that leaves stops its jobs, in whatever state they are; a detached job goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from structlog.typing import EventDict
from tests.gateway.conftest import Rig, gateway_of, over, until
from tests.gateway.scripted_worker import Script
from tests.gateway.sse_reader import events
from tests.gateway.test_chat import CHAT
from tests.gateway.test_chat import URL as CHAT_URL

from headway.queueing.errors import QueueingError, QueueUnavailableError, UnknownJobError
from headway.queueing.events import EndReason, JobState
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.messages import Job
from headway.queueing.protocol import Cancelled, Submitted


class Watched(MemoryQueue):
    """Remembers its jobs, and can be slow to submit or refuse cancels for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.job_ids: list[str] = []
        self.submit_gate = asyncio.Event()
        self.submit_gate.set()
        self.submitting = asyncio.Event()
        self.refused_cancels = 0

    async def submit(
        self, job: Job, *, key: str | None = None, reserved: str = "", asked: Job | None = None
    ) -> Submitted:
        self.submitting.set()
        await self.submit_gate.wait()
        submitted = await super().submit(job, key=key, reserved=reserved, asked=asked)
        self.job_ids.append(submitted.job_id)
        return submitted

    async def cancel(self, job_id: str, reason: str) -> Cancelled:
        if self.refused_cancels:
            self.refused_cancels -= 1
            raise QueueUnavailableError("the server is away", retry_after_seconds=0.01)
        return await super().cancel(job_id, reason)

    async def until_finished(self, reason: EndReason) -> None:
        async with asyncio.timeout(5):
            while True:
                states = [await self.status(job_id) for job_id in self.job_ids]
                if states and all(state.state is JobState.FINISHED for state in states):
                    assert {state.reason for state in states} == {reason}
                    return
                await asyncio.sleep(0.01)


async def leave(http: httpx.AsyncClient, body: dict[str, Any], when: asyncio.Future[Any] | Any) -> None:
    """Post, wait for the moment, close the connection."""
    asking = asyncio.create_task(http.post(CHAT_URL, json=body))
    await when
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize("streams", [False, True])
async def test_leaving_while_the_job_waits_cancels_it(streams: bool, rig: Rig) -> None:
    queue = Watched()
    await queue.heartbeat((await rig.queue.workers())[0], ttl_seconds=60)
    async with rig.serve(rig.app(queue)) as url, httpx.AsyncClient(base_url=url) as http:
        await leave(http, CHAT | {"stream": streams}, until(lambda: bool(queue.job_ids)))
        await queue.until_finished(EndReason.CANCELLED)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("hold_at", [0, 3])
async def test_leaving_while_the_job_runs_cancels_it(streams: bool, hold_at: int) -> None:
    async with (
        over(Watched(), Script(hold_at=hold_at)) as rig,
        rig.serve() as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        await leave(http, CHAT | {"stream": streams}, rig.until_seen())
        await rig.until_ended()
    assert list(rig.worker.ended.values()) == [EndReason.CANCELLED]


async def test_leaving_in_the_middle_of_a_stream_cancels_the_job() -> None:
    async with (
        over(Watched(), Script(hold_at=3)) as rig,
        rig.serve() as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        async with http.stream("POST", CHAT_URL, json=CHAT | {"stream": True}) as response:
            async for event in events(response):
                if event.json["choices"][0]["delta"].get("content") == ", wor":
                    break
        await rig.until_ended()
    assert list(rig.worker.ended.values()) == [EndReason.CANCELLED]


async def test_leaving_while_the_job_is_being_posted_leaves_no_orphan(rig: Rig) -> None:
    queue = Watched()
    await queue.heartbeat((await rig.queue.workers())[0], ttl_seconds=60)
    queue.submit_gate.clear()
    async with rig.serve(rig.app(queue)) as url, httpx.AsyncClient(base_url=url) as http:
        await leave(http, CHAT, queue.submitting.wait())
        await asyncio.sleep(0.05)
        queue.submit_gate.set()
        await queue.until_finished(EndReason.CANCELLED)


async def test_all_jobs_of_a_request_are_cancelled() -> None:
    async with (
        over(Watched(), Script(hold_at=1)) as rig,
        rig.serve() as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        body = {"model": "tiny", "prompt": ["a", "b", "c"], "stream": True}
        async with http.stream("POST", "/v1/completions", json=body):
            await rig.until_seen(3)
        await rig.until_ended(3)
    assert list(rig.worker.ended.values()) == [EndReason.CANCELLED] * 3


class OneStuck(Watched):
    """Never lets the first of its jobs be cancelled."""

    def __init__(self, error: QueueingError) -> None:
        super().__init__()
        self._error = error

    async def cancel(self, job_id: str, reason: str) -> Cancelled:
        if job_id == self.job_ids[0]:
            raise self._error
        return await super().cancel(job_id, reason)


@pytest.mark.parametrize(
    "error", [UnknownJobError("its record is gone"), QueueUnavailableError("away", retry_after_seconds=0.01)]
)
async def test_a_job_that_cannot_be_cancelled_keeps_no_other_from_it(
    error: QueueingError, logs: list[EventDict]
) -> None:
    async with (
        over(OneStuck(error), Script(hold_at=1)) as rig,
        rig.serve(rig.app(cancel_seconds=0.2)) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        body = {"model": "tiny", "prompt": ["a", "b", "c"], "stream": True}
        async with http.stream("POST", "/v1/completions", json=body):
            await rig.until_seen(3)
        await rig.until_ended(2)
        await until(lambda: any(line["event"] == "job could not be cancelled" for line in logs))
        stuck = rig.worker.claimed[0]
        assert stuck not in rig.worker.ended
        assert [line["job"] for line in logs if line["event"] == "job could not be cancelled"] == [stuck]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("fields", [{"on_disconnect": "detach"}, {}])
async def test_a_detached_job_goes_on(streams: bool, fields: dict[str, str]) -> None:
    """By its own wish, or because its idempotency key says that the client may come back."""
    ticket = asyncio.Event()

    async def pace() -> None:
        await ticket.wait()

    headers = {} if fields else {"Idempotency-Key": "k"}
    queue = Watched()
    async with (
        over(queue, Script(pace=pace)) as rig,
        rig.serve() as url,
        httpx.AsyncClient(base_url=url, headers=headers) as http,
    ):
        body = CHAT | {"stream": streams} | fields
        await leave(http, body, rig.until_seen())
        await asyncio.sleep(0.1)
        ticket.set()
        await queue.until_finished(EndReason.STOP)
        if headers:
            again = await http.post(CHAT_URL, json=body)
            assert again.headers["x-headway-job-id"] == queue.job_ids[0]


async def test_a_cancel_survives_the_end_of_its_handler_and_a_short_outage() -> None:
    queue = Watched()
    async with over(queue, Script(hold_at=3)) as rig:
        queue.refused_cancels = 10
        app = rig.app()
        asking = asyncio.create_task(post_once(rig, app))
        await rig.until_seen()
        asking.cancel()
        await asyncio.sleep(0)
        asking.cancel()  # again, while the first is being handled
        await asyncio.gather(asking, return_exceptions=True)
        await queue.until_finished(EndReason.CANCELLED)
        await gateway_of(app).close()


async def post_once(rig: Rig, app: Any) -> None:
    async with rig.client(app) as http:
        await http.post(CHAT_URL, json=CHAT)


async def test_a_second_reader_of_the_same_key_cancels_nothing_when_it_leaves() -> None:
    queue = Watched()
    async with over(queue, Script(hold_at=3)) as rig:
        headers = {"Idempotency-Key": "k"}
        async with rig.serve() as url, httpx.AsyncClient(base_url=url, headers=headers) as http:
            body = CHAT | {"on_disconnect": "cancel"}
            first = asyncio.create_task(http.post(CHAT_URL, json=body))
            await rig.until_seen()
            await leave(http, body, asyncio.sleep(0.1))
            await asyncio.sleep(0.1)
            assert rig.worker.ended == {}
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await queue.until_finished(EndReason.CANCELLED)


async def test_a_client_that_leaves_while_it_posts_its_body_is_not_an_error(rig: Rig) -> None:
    async with rig.serve() as url:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n"
            b"content-type: application/json\r\n\r\n{"
        )
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        async with httpx.AsyncClient(base_url=url) as http:
            await asyncio.sleep(0.05)
            text = (await http.get("/metrics")).text
    assert 'status="499"' in text
