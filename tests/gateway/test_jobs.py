"""The jobs API: post, look, follow from anywhere, fetch, cancel."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Rig, over, post_job
from tests.gateway.scripted_worker import Script
from tests.gateway.sse_reader import Event, events, parse

from headway.queueing.events import EndReason
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.settings import QueueSettings

JOB: dict[str, Any] = {"model": "tiny", "prompt": "a"}


async def test_a_job_from_post_to_result(http: httpx.AsyncClient, rig: Rig) -> None:
    posted = await http.post(
        "/v1/jobs", json=JOB | {"metadata": {"k": "v"}, "sampling": {"n": 2, "logprobs": 1}}
    )
    assert posted.status_code == 202
    made = posted.json()
    assert (made["status"], made["created"], made["object"]) == ("queued", True, "job")
    assert posted.headers["location"] == made["url"] == f"/v1/jobs/{made['id']}"
    await rig.until_ended()
    record = (await http.get(made["url"])).json()
    assert (record["status"], record["reason"], record["priority"]) == ("finished", "stop", "standard")
    assert (record["committed_tokens"], record["metadata"], record["worker"]) == (10, {"k": "v"}, "w1")
    assert record["deadline_ms"] is None
    result = (await http.get(made["result_url"])).json()
    assert record["result"] == result
    assert [choice["text"] for choice in result["choices"]] == ["Hello, world!"] * 2
    assert result["choices"][1]["token_ids"] == [100, 101, 102, 103, 104]
    assert result["choices"][0]["logprobs"][0]["token_id"] == 100
    assert result["usage"]["total_tokens"] == 17


async def test_a_result_not_there_yet_is_202(http: httpx.AsyncClient, rig: Rig) -> None:
    rig.worker.script = Script(hold_at=1)
    job_id = await post_job(rig)
    response = await http.get(f"/v1/jobs/{job_id}/result")
    assert response.status_code == 202
    assert response.json()["status"] in ("queued", "running")
    assert response.headers["retry-after"] == "1"


async def test_events_carry_tokens_and_one_end(http: httpx.AsyncClient, rig: Rig) -> None:
    rig.worker.script = Script(tail="~")
    job_id = await post_job(rig)
    response = await http.get(f"/v1/jobs/{job_id}/stream")
    assert response.headers["x-accel-buffering"] == "no"
    got = parse(response.text)
    assert [event.event for event in got] == ["tokens"] * 5 + ["end"]
    assert [event.id for event in got] == ["1-0", "2-0", "3-0", "4-0", "5-0", "5-1"]
    assert got[0].json == {
        "choice": 0,
        "text": "Hel",
        "token_ids": [100],
        "logprobs": None,
        "finish_reason": None,
    }
    end = got[-1].json
    assert (end["reason"], end["error"]) == ("stop", None)
    assert end["choices"] == [{"index": 0, "finish_reason": "stop", "tail": "~"}]


async def test_a_reader_may_resume_at_every_position_and_gets_each_event_once(
    http: httpx.AsyncClient, rig: Rig
) -> None:
    job_id = await post_job(rig, sampling={"n": 3})
    whole = parse((await http.get(f"/v1/jobs/{job_id}/stream")).text)
    assert len(whole) == 16
    for position, event in enumerate(whole[:-1]):
        assert event.id is not None
        by_header = await http.get(f"/v1/jobs/{job_id}/stream", headers={"Last-Event-ID": event.id})
        assert parse(by_header.text) == whole[position + 1 :]
        by_query = await http.get(f"/v1/jobs/{job_id}/stream", params={"after": event.id})
        assert parse(by_query.text) == whole[position + 1 :]
    both = await http.get(
        f"/v1/jobs/{job_id}/stream", params={"after": "1"}, headers={"Last-Event-ID": "14-0"}
    )
    assert parse(both.text) == whole[14:]


async def test_a_reader_that_has_everything_is_told_to_stop(http: httpx.AsyncClient, rig: Rig) -> None:
    job_id = await post_job(rig)
    await rig.until_ended()
    response = await http.get(f"/v1/jobs/{job_id}/stream", headers={"Last-Event-ID": "5-1"})
    assert (response.status_code, response.content) == (204, b"")


@pytest.mark.parametrize("cursor", ["-1", "x", "1-", "1 0", "1-0-0", "99999", "6-0", "$", "9" * 20])
async def test_a_cursor_that_no_event_had_is_refused(http: httpx.AsyncClient, rig: Rig, cursor: str) -> None:
    job_id = await post_job(rig)
    await rig.until_ended()
    for field, response in (
        ("Last-Event-ID", await http.get(f"/v1/jobs/{job_id}/stream", headers={"Last-Event-ID": cursor})),
        ("after", await http.get(f"/v1/jobs/{job_id}/stream", params={"after": cursor})),
    ):
        assert response.status_code == 400
        refused = response.json()["error"]
        assert (refused["code"], refused["param"]) == ("invalid_cursor", field)


async def test_a_reader_that_is_ahead_of_a_running_job_waits_for_what_follows(rig: Rig) -> None:
    """A failover lost what it has read: those tokens come again under the same cursors, not for it."""
    ticket = asyncio.Semaphore(2)

    async def pace() -> None:
        await ticket.acquire()

    rig.worker.script = Script(pieces=tuple(f"<{index}>" for index in range(8)), pace=pace)
    job_id = await post_job(rig)
    async with rig.serve() as url, httpx.AsyncClient(base_url=url) as http:
        headers = {"Last-Event-ID": "5-0"}
        async with http.stream("GET", f"/v1/jobs/{job_id}/stream", headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            for _ in range(8):
                ticket.release()
            got = [event async for event in events(response)]
    assert [event.id for event in got] == ["6-0", "7-0", "8-0", "8-1"]


async def test_readers_that_come_and_go_while_tokens_flow_see_each_event_once(rig: Rig) -> None:
    """Reconnects after every second event, late and early, against a worker that is still writing."""
    ticket = asyncio.Semaphore(0)

    async def pace() -> None:
        await ticket.acquire()

    rig.worker.script = Script(pieces=tuple(f"<{index}>" for index in range(30)), pace=pace)
    job_id = await post_job(rig)
    got: list[Event] = []
    async with rig.serve() as url, httpx.AsyncClient(base_url=url) as http:
        while not got or got[-1].event != "end":
            headers = {"Last-Event-ID": got[-1].id or ""} if got else {}
            for _ in range(3):
                ticket.release()
            async with http.stream("GET", f"/v1/jobs/{job_id}/stream", headers=headers) as response:
                batch = 0
                async for event in events(response):
                    got.append(event)
                    batch += 1
                    if batch == 2:
                        break
    assert "".join(event.json["text"] for event in got[:-1]) == "".join(rig.worker.script.pieces)
    assert len({event.id for event in got}) == len(got) == 31
    assert list(rig.worker.ended.values()) == [EndReason.STOP], "a reader that leaves cancels nothing"


async def test_once_the_token_stream_is_gone_the_answer_can_still_be_read_from_the_start() -> None:
    async with over(MemoryQueue(QueueSettings(stream_retention_seconds=0.01)), Script()) as rig:
        job_id = await post_job(rig)
        await rig.until_ended()
        await asyncio.sleep(0.05)
        async with rig.client() as http:
            got = parse((await http.get(f"/v1/jobs/{job_id}/stream")).text)
            resumed = await http.get(f"/v1/jobs/{job_id}/stream", headers={"Last-Event-ID": "2-0"})
    assert [event.json.get("text") for event in got] == ["Hello, world!", None]
    assert resumed.status_code == 404
    assert "result" in resumed.json()["error"]["message"]


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_cancel_tells_what_it_met(http: httpx.AsyncClient, rig: Rig, method: str) -> None:
    rig.worker.script = Script(hold_at=1)
    job_id = await post_job(rig)
    await rig.until_seen()
    url = f"/v1/jobs/{job_id}" + ("/cancel" if method == "POST" else "")
    assert (await http.request(method, url)).json()["status"] == "cancelling"
    await rig.until_ended()
    assert (await http.request(method, url)).json()["status"] == "finished"
    record = (await http.get(f"/v1/jobs/{job_id}")).json()
    assert (record["reason"], record["cancel_reason"]) == ("cancelled", "cancelled over HTTP")


async def test_cancel_of_a_job_that_waits_ends_it_at_once(rig: Rig) -> None:
    idle = MemoryQueue()
    await idle.heartbeat((await rig.queue.workers())[0], ttl_seconds=60)
    async with rig.client(rig.app(idle)) as http:
        made = (await http.post("/v1/jobs", json=JOB)).json()
        assert (await http.delete(made["url"])).json()["status"] == "cancelled"
        end = parse((await http.get(made["stream_url"])).text)[-1]
    assert (end.event, end.json["reason"]) == ("end", "cancelled")


async def test_one_idempotency_key_is_one_job_in_header_or_body(http: httpx.AsyncClient, rig: Rig) -> None:
    first = (await http.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "k"})).json()
    again = (await http.post("/v1/jobs", json=JOB | {"idempotency_key": "k"})).json()
    assert (again["id"], first["created"], again["created"]) == (first["id"], True, False)
    conflict = await http.post("/v1/jobs", json=JOB | {"prompt": "b", "idempotency_key": "k"})
    assert conflict.status_code == 409


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, None),
        ({"messages": [{"role": "user", "content": "x"}]}, None),
        ({"sampling": {"temperature": 9}}, "sampling.temperature"),
        ({"prompts": "x"}, "prompts"),
        ({"traceparent": "x"}, "traceparent"),
    ],
)
async def test_the_job_contract_is_checked_at_the_door(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str | None
) -> None:
    response = await http.post("/v1/jobs", json=JOB | fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_a_job_over_the_queues_limit_is_413(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/jobs", json=JOB | {"prompt": "x" * (1 << 20)})
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "job_too_large"
