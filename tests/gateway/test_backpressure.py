"""A server that is full, without its replicas, read-only, slow, hung or gone: what clients are told, and that
answers under way come whole."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import httpx
import pytest
from tests.gateway.conftest import Rig, over, until
from tests.gateway.scripted_worker import Script
from tests.gateway.sse_reader import chat_text, parse
from tests.gateway.test_chat import CHAT
from tests.gateway.test_chat import URL as CHAT_URL
from tests.queueing.lossy_link import LossyLink

import headway.queueing.node as node_module
from headway.queueing.events import EndReason
from headway.queueing.redis_queue import RedisQueue

if TYPE_CHECKING:
    from tests.conftest import RedisServer, StartRedis

REFUSALS = {
    "full": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), "maxmemory"),
    "alone": (
        ("CONFIG", "SET", "min-replicas-to-write", "1"),
        ("CONFIG", "SET", "min-replicas-to-write", "0"),
        "NOREPLICAS",
    ),
    "read-only": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), "replica"),
}


@pytest.fixture(params=["redis7", "valkey9"])
def server(request: pytest.FixtureRequest, start_redis: StartRedis) -> RedisServer:
    return start_redis(request.param)


@pytest.fixture
async def rig(server: RedisServer) -> AsyncGenerator[Rig]:
    queue = RedisQueue(server.url)
    await queue.check_server()
    async with over(queue, Script()) as made:
        yield made
    await queue.close()


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_server_that_refuses_writes_is_not_ready_and_a_submit_gets_a_503(
    rig: Rig, server: RedisServer, refusal: str
) -> None:
    refuse, accept, word = REFUSALS[refusal]
    async with rig.client() as http:
        assert (await http.get("/readyz")).status_code == 200
        assert server.command(*refuse) == b"+OK\r\n"
        keys_before = server.command("DBSIZE")
        for path, body in ((CHAT_URL, CHAT), ("/v1/jobs", {"model": "tiny", "prompt": "a"})):
            refused = await http.post(path, json=body)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["x-headway-reason"] == "queue_unavailable"
            assert word in refused.json()["error"]["message"]
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        assert word in ready.json()["reason"]
        assert (await http.get("/healthz")).status_code == 200, "no restart would cure it"
        assert server.command("DBSIZE") == keys_before, "nothing half-written"
        assert server.command(*accept) == b"+OK\r\n"
        assert (await http.post(CHAT_URL, json=CHAT)).status_code == 200
        assert (await http.get("/readyz")).status_code == 200


async def test_answers_under_way_come_whole_from_a_full_server(rig: Rig, server: RedisServer) -> None:
    """What was accepted is finished: only that makes room again."""
    gate = asyncio.Event()

    async def pace() -> None:
        await gate.wait()

    rig.worker.script = Script(pace=pace)
    async with rig.serve() as url, httpx.AsyncClient(base_url=url, timeout=30) as http:
        asking = asyncio.create_task(http.post(CHAT_URL, json=CHAT | {"stream": True}))
        await rig.until_seen()
        server.command("CONFIG", "SET", "maxmemory", "1")
        gate.set()
        events = parse((await asking).text)
        assert chat_text([event.json for event in events[:-1]]) == "Hello, world!"


async def test_a_slow_server_only_delays(rig: Rig, server: RedisServer) -> None:
    async with rig.client() as http:
        server.command("CLIENT", "PAUSE", "700", "ALL")
        assert (await http.post(CHAT_URL, json=CHAT)).status_code == 200


async def test_a_hung_server_means_503_in_bounded_time(
    rig: Rig, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "CALL_SECONDS", 0.5)
    assert server.process is not None
    async with rig.client() as http:
        await http.get("/v1/models")
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            refused = await asyncio.wait_for(http.post(CHAT_URL, json=CHAT), 20)
            ready = await asyncio.wait_for(http.get("/readyz"), 20)
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        assert (refused.status_code, refused.headers["x-headway-reason"]) == (503, "queue_unavailable")
        assert ready.status_code == 503
        assert (await http.post(CHAT_URL, json=CHAT)).status_code == 200


@pytest.mark.parametrize("path", [CHAT_URL, "/v1/jobs"])
async def test_a_job_whose_acceptance_nobody_heard_of_does_not_run_on(server: RedisServer, path: str) -> None:
    """The server took it, the reply was lost, the client was told 503: it is taken back."""
    link = LossyLink(server.folder, str(server.socket))
    await link.start()
    here, there = RedisQueue(server.url), RedisQueue(link.url)
    await here.check_server()
    try:
        async with over(here, Script(hold_at=1)) as rig, rig.client(rig.app(there)) as http:
            await http.get("/v1/models")
            link.lose_reply_to(b"headway_submit", times=3)
            body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
            assert (await http.post(path, json=body)).status_code == 503
            assert link.losses == 3
            await until(lambda: list(rig.worker.ended.values()) == [EndReason.CANCELLED])
            link.lose_reply_to(b"headway_submit", times=3)
            kept = await http.post(path, json=body, headers={"Idempotency-Key": "once"})
            assert kept.status_code == 503
            again = asyncio.create_task(http.post(path, json=body, headers={"Idempotency-Key": "once"}))
            await rig.until_seen(2)
            await asyncio.sleep(0.1)
            assert len(rig.worker.seen) == 2, "the same job"
            await rig.queue.cancel(rig.worker.claimed[-1], "enough")
            await again
    finally:
        await there.close()
        await here.close()
        await link.stop()


async def test_a_link_that_swallows_everything_means_503_in_bounded_time(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not refused, not closed: just no answer, as behind a firewall that forgot the connection."""
    monkeypatch.setattr(node_module, "CALL_SECONDS", 0.5)
    link = LossyLink(server.folder, str(server.socket))
    await link.start()
    here, there = RedisQueue(server.url), RedisQueue(link.url)
    await here.check_server()
    try:
        async with over(here, Script()) as rig, rig.client(rig.app(there)) as http:
            assert (await http.post(CHAT_URL, json=CHAT)).status_code == 200
            link.go_silent()
            refused = await asyncio.wait_for(http.post(CHAT_URL, json=CHAT), 20)
            assert (refused.status_code, refused.headers["x-headway-reason"]) == (503, "queue_unavailable")
            assert int(refused.headers["retry-after"]) >= 1
            assert (await asyncio.wait_for(http.get("/readyz"), 20)).status_code == 503
    finally:
        await there.close()
        await here.close()
        await link.stop()
