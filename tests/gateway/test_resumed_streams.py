"""A streamed OpenAI answer goes on after any of its chunks, with the key of the request that began it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Rig, over
from tests.gateway.scripted_worker import Script
from tests.gateway.sse_reader import Event, chat_text, parse
from tests.gateway.test_chat import CHAT
from tests.gateway.test_chat import URL as CHAT_URL
from tests.gateway.test_tenants import error_of

from headway.gateway.chunk_positions import read_position
from headway.queueing.events import EndReason, JobError
from headway.queueing.memory_queue import MemoryQueue

STREAM: dict[str, Any] = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
KEY = {"Idempotency-Key": "once"}


async def streamed(http: httpx.AsyncClient, after: str | None = None, **fields: object) -> list[Event]:
    headers = KEY if after is None else KEY | {"Last-Event-ID": after}
    response = await http.post(CHAT_URL, json=STREAM | fields, headers=headers)
    assert response.status_code == 200, response.text
    return parse(response.text)


@pytest.mark.parametrize("fields", [{}, {"n": 2}])
async def test_each_chunk_is_a_place_to_go_on_from(
    fields: dict[str, Any], rig: Rig, http: httpx.AsyncClient
) -> None:
    everything = await streamed(http, **fields)
    assert everything[-1].data == "[DONE]"
    assert everything[-2].json["usage"]["completion_tokens"] == 5 * (2 if fields else 1)
    places = [read_position(event.id or "") for event in everything[:-1]]
    assert places == sorted(set(places)), "no two chunks share an id"
    for index, event in enumerate(everything[:-1]):
        assert await streamed(http, event.id, **fields) == everything[index + 1 :]
    assert len(rig.worker.seen) == 1, "it was one job all the time"


async def test_who_has_a_part_of_an_event_gets_all_of_it_from_the_jobs_own_stream(
    http: httpx.AsyncClient,
) -> None:
    response = await http.post(CHAT_URL, json=STREAM, headers=KEY)
    job_id = response.headers["x-headway-job-id"]
    first = parse(response.text)[0]
    assert first.id == "1-0.1"
    resumed = await http.get(f"/v1/jobs/{job_id}/stream", headers={"Last-Event-ID": first.id})
    assert parse(resumed.text)[0].id == "1-0"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Last-Event-ID": "2-0"}, STREAM),
        (KEY | {"Last-Event-ID": "-1"}, STREAM),
        (KEY | {"Last-Event-ID": "2-0.x"}, STREAM),
        (KEY | {"Last-Event-ID": "2-0.1.1"}, STREAM),
        (KEY | {"Last-Event-ID": "2-0."}, STREAM),
    ],
)
async def test_a_place_that_cannot_be_gone_on_from_is_refused(
    headers: dict[str, str], body: dict[str, Any], http: httpx.AsyncClient, rig: Rig
) -> None:
    refused = await http.post(CHAT_URL, json=body, headers=headers)
    assert refused.status_code == 400
    assert error_of(refused)["param"] == "Last-Event-ID"
    assert rig.worker.seen == []


async def test_a_place_behind_the_end_is_refused_and_is_not_taken_for_an_answer_without_a_rest(
    http: httpx.AsyncClient,
) -> None:
    got = await streamed(http)
    assert got[-1].data == "[DONE]"
    for beyond in ("999", "99999999999-9"):
        refused = await http.post(CHAT_URL, json=STREAM, headers=KEY | {"Last-Event-ID": beyond})
        assert (refused.status_code, error_of(refused)["code"]) == (400, "invalid_cursor")
        assert error_of(refused)["param"] == "Last-Event-ID"
    rest = await http.post(CHAT_URL, json=STREAM, headers=KEY | {"Last-Event-ID": got[-2].id or ""})
    assert [event.data for event in parse(rest.text)] == ["[DONE]"]


async def test_a_stream_of_several_prompts_is_not_resumed(http: httpx.AsyncClient) -> None:
    body = {"model": "tiny", "prompt": ["a", "b"], "stream": True}
    refused = await http.post("/v1/completions", json=body, headers=KEY | {"Last-Event-ID": "1-0"})
    assert (refused.status_code, error_of(refused)["code"]) == (400, "unsupported")


async def test_usage_comes_before_the_error_of_an_answer_that_broke_off() -> None:
    script = Script(reason=EndReason.ERROR, error=JobError("engine_error", "it broke"))
    async with over(MemoryQueue(), script) as rig, rig.client() as http:
        got = await streamed(http)
    assert chat_text([event.json for event in got[:-2]]) == "Hello, world!"
    assert got[-2].json["choices"] == []
    assert got[-2].json["usage"]["completion_tokens"] == 5
    assert got[-1].json["error"]["code"] == "engine_error"


async def test_usage_of_several_prompts_is_told_once_with_all_of_them(http: httpx.AsyncClient) -> None:
    body = {"model": "tiny", "prompt": ["a", "b", "c"], "stream": True, "max_tokens": 4}
    response = await http.post("/v1/completions", json=body | {"stream_options": {"include_usage": True}})
    usages = [event.json["usage"] for event in parse(response.text)[:-1] if event.json["usage"]]
    assert [usage["completion_tokens"] for usage in usages] == [12]
