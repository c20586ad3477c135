"""The responses API with the official client: whole and streamed answers, what is kept, what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from tests.gateway.conftest import Rig, over, post_job, until
from tests.gateway.scripted_worker import Script
from tests.gateway.sse_reader import Event, parse
from tests.gateway.test_tenants import add_key, error_of

from headway.gateway.response_ids import job_id_of, response_id_of
from headway.queueing.errors import UnknownJobError
from headway.queueing.events import EndReason, JobError, JobState
from headway.queueing.memory_queue import MemoryQueue

URL = "/v1/responses"
HI: dict[str, Any] = {"model": "tiny", "input": "hi"}
KINDS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    *["response.output_text.delta"] * 5,
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


async def answered(http: httpx.AsyncClient, **fields: object) -> dict[str, Any]:
    response = await http.post(URL, json=HI | fields)
    assert response.status_code == 200, response.text
    made: dict[str, Any] = response.json()
    return made


async def streamed(http: httpx.AsyncClient, response_id: str, after: int | None = None) -> list[Event]:
    query = {"stream": "true"} | ({} if after is None else {"starting_after": str(after)})
    response = await http.get(f"{URL}/{response_id}", params=query)
    assert response.status_code == 200, response.text
    return parse(response.text)


# -- answers ------------------------------------------------------------------------------------------


async def test_a_whole_answer(client: AsyncOpenAI, rig: Rig) -> None:
    answer = await client.responses.create(
        model="tiny",
        input="hi",
        instructions="Be brief.",
        temperature=0.5,
        max_output_tokens=9,
        metadata={"a": "b"},
        user="u1",
    )
    assert (answer.output_text, answer.status, answer.error) == ("Hello, world!", "completed", None)
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (7, 5, 12)
    assert (answer.instructions, answer.temperature, answer.max_output_tokens) == ("Be brief.", 0.5, 9)
    assert (answer.metadata, answer.user) == ({"a": "b"}, "u1")
    (job,) = rig.worker.seen
    assert [(turn.role, turn.content) for turn in job.messages or ()] == [
        ("system", "Be brief."),
        ("user", "hi"),
    ]
    assert job.priority == "interactive"
    assert await client.responses.retrieve(answer.id) == answer


async def test_an_answer_that_reached_its_limit_is_incomplete(client: AsyncOpenAI) -> None:
    answer = await client.responses.create(model="tiny", input="hi", max_output_tokens=2)
    assert (answer.status, answer.output_text) == ("incomplete", "Hello")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


async def test_a_stream_has_the_documented_events_in_order(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(model="tiny", input="hi", stream=True)
    events = [event async for event in stream]
    assert [event.type for event in events] == KINDS
    numbers = [event.sequence_number for event in events]
    assert numbers == [0, 1, 12, 13, 14, 24, 36, 48, 60, 72, 73, 74, 83]
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Hello, world!"
    assert last.response.completed_at is not None
    assert last.response.completed_at >= last.response.created_at
    assert await client.responses.retrieve(last.response.id) == last.response


async def test_the_clients_own_stream_helper_assembles_the_answer(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model="tiny", input="hi") as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        answer = await stream.get_final_response()
    assert "".join(deltas) == answer.output_text == "Hello, world!"


async def test_text_held_back_to_the_end_is_a_delta_too() -> None:
    async with over(MemoryQueue(), Script(pieces=("a", ""), tail="z")) as rig, rig.client() as http:
        events = [each.json for each in parse((await http.post(URL, json=HI | {"stream": True})).text)]
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == events[-1]["response"]["output"][0]["content"][0]["text"] == "az"
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))


async def test_log_probabilities_come_where_they_are_included(client: AsyncOpenAI) -> None:
    answer = await client.responses.create(
        model="tiny", input="hi", include=["message.output_text.logprobs"], top_logprobs=2
    )
    (item,) = answer.output
    assert item.type == "message"
    (part,) = item.content
    assert part.type == "output_text"
    assert [(each.token, len(each.top_logprobs)) for each in (part.logprobs or [])[:1]] == [("Hel", 2)]
    assert answer.top_logprobs == 2


async def test_a_form_of_the_text_constrains_the_job(client: AsyncOpenAI, rig: Rig) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form: Any = {"type": "json_schema", "name": "thing", "schema": schema, "strict": True}
    answer = await client.responses.create(model="tiny", input="hi", text={"format": form})
    (job,) = rig.worker.seen
    assert job.constraint is not None
    assert job.constraint.json_schema == schema
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.model_dump(exclude_none=True, by_alias=True) == form


# -- what is kept -------------------------------------------------------------------------------------


async def test_a_deleted_response_is_gone(client: AsyncOpenAI, rig: Rig) -> None:
    answer = await client.responses.create(model="tiny", input="hi")
    await client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(answer.id)
    with pytest.raises(UnknownJobError):
        await rig.queue.status(job_id_of(answer.id))


async def test_a_running_response_is_not_deleted_under_its_worker() -> None:
    async with over(MemoryQueue(), Script(hold_at=1)) as rig, rig.client() as http:
        made = await answered(http, background=True)
        refused = await http.delete(f"{URL}/{made['id']}")
        assert (refused.status_code, error_of(refused)["code"]) == (400, "response_in_progress")


@pytest.mark.parametrize("streams", [False, True])
async def test_what_is_not_to_be_stored_is_forgotten_once_delivered(
    streams: bool, http: httpx.AsyncClient, rig: Rig
) -> None:
    response = await http.post(URL, json=HI | {"store": False, "stream": streams})
    assert response.status_code == 200
    job_id = response.headers["x-headway-job-id"]
    assert isinstance(rig.queue, MemoryQueue)
    await until(lambda: rig.queue._store.find(job_id) is None)  # type: ignore[attr-defined]  # its own books
    assert (await http.get(f"{URL}/{response_id_of(job_id)}")).status_code == 404


async def test_nobody_sees_another_tenants_response(http: httpx.AsyncClient, rig: Rig) -> None:
    mine, theirs = await add_key(rig, "mine"), await add_key(rig, "theirs")
    made = (await http.post(URL, json=HI, headers=mine)).json()
    at = f"{URL}/{made['id']}"
    for method, path in (
        ("GET", at),
        ("GET", f"{at}?stream=true"),
        ("GET", f"{at}/input_items"),
        ("POST", f"{at}/cancel"),
        ("DELETE", at),
    ):
        refused = await http.request(method, path, headers=theirs)
        assert (refused.status_code, error_of(refused)["code"]) == (404, "response_not_found")
    refused = await http.post(URL, json=HI | {"previous_response_id": made["id"]}, headers=theirs)
    assert error_of(refused)["code"] == "previous_response_not_found"
    assert (await http.get(at, headers=mine)).status_code == 200


async def test_a_job_that_is_no_response_is_not_shown_as_one(http: httpx.AsyncClient, rig: Rig) -> None:
    job_id = await post_job(rig)
    for response_id in (response_id_of(job_id), job_id, "resp_", "resp_%C3%A9", "resp_AAAA"):
        assert (await http.get(f"{URL}/{response_id}")).status_code == 404


# -- refusals and bad ends ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input": None}, "missing_required_parameter", "input"),
        ({"input": []}, "missing_required_parameter", "input"),
        ({"input": 7}, "invalid_type", "input"),
        ({"input": [{"role": "user"}]}, "invalid_value", "input[0].content"),
        ({"input": [{"role": "root", "content": "x"}]}, "invalid_value", "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "unsupported", "input[0].type"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "invalid_type", "input[0].summary"),
        ({"input": [{"type": "reasoning", "summary": [7]}]}, "invalid_type", "input[0].summary[0]"),
        (
            {"input": [{"type": "reasoning", "content": [{"type": "x"}]}]},
            "invalid_value",
            "input[0].content[0].type",
        ),
        (
            {"input": [{"type": "reasoning", "encrypted_content": {}}]},
            "invalid_type",
            "input[0].encrypted_content",
        ),
        ({"input": [{"role": "user", "content": "x", "id": 5}]}, "invalid_type", "input[0].id"),
        ({"input": [{"role": "user", "content": "x", "status": "odd"}]}, "invalid_value", "input[0].status"),
        (
            {
                "input": [
                    {"role": "user", "content": [{"type": "output_text", "text": "x", "annotations": 5}]}
                ]
            },
            "invalid_type",
            "input[0].content[0].annotations",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "unsupported",
            "input[0].content[0]",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "invalid_value", "input[0].call_id"),
        ({"tools": [{"type": "web_search"}]}, "unsupported", "tools"),
        ({"conversation": "conv_1"}, "unsupported", "conversation"),
        ({"truncation": "auto"}, "unsupported", "truncation"),
        ({"include": ["file_search_call.results"]}, "unsupported", "include[0]"),
        ({"background": True, "store": False}, "invalid_value", "store"),
        ({"stream_options": {"include_obfuscation": False}}, "invalid_value", "stream_options"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"text": {"format": {"type": "json_schema"}}}, "missing_required_parameter", "text.format.name"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
        ({"temperature": 3.0}, "invalid_value", "temperature"),
        ({"nonsense": 1}, "unknown_parameter", "nonsense"),
    ],
)
async def test_a_refusal_names_the_field_and_its_fix(
    fields: dict[str, Any], code: str, param: str, http: httpx.AsyncClient, rig: Rig
) -> None:
    refused = await http.post(URL, json=HI | fields)
    error = error_of(refused)
    assert (refused.status_code, error["code"], error["param"]) == (400, code, param), error
    assert rig.worker.seen == []


@pytest.mark.parametrize("streams", [False, True])
async def test_a_job_that_its_worker_refuses_at_once_is_a_status(streams: bool) -> None:
    error = JobError("context_length_exceeded", "too long", "messages")
    script = Script(pieces=(), reason=EndReason.ERROR, error=error)
    async with over(MemoryQueue(), script) as rig, rig.client() as http:
        refused = await http.post(URL, json=HI | {"stream": streams})
    assert (refused.status_code, error_of(refused)["code"]) == (400, "context_length_exceeded")


async def test_a_job_that_fails_in_the_middle_ends_its_stream_as_failed() -> None:
    error = JobError("engine_error", "the engine broke")
    script = Script(pieces=("a", "b"), reason=EndReason.ERROR, error=error)
    async with over(MemoryQueue(), script) as rig, rig.client() as http:
        events = parse((await http.post(URL, json=HI | {"stream": True})).text)
        last = events[-1].json
        assert last["type"] == "response.failed"
        assert last["response"]["status"] == "failed"
        assert last["response"]["error"] == {"code": "engine_error", "message": "the engine broke"}
        kept = (await http.get(f"{URL}/{last['response']['id']}")).json()
        assert kept == last["response"]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("hold_at", [0, 3])
async def test_a_client_that_leaves_cancels_its_response(streams: bool, hold_at: int) -> None:
    async with (
        over(MemoryQueue(), Script(hold_at=hold_at)) as rig,
        rig.serve() as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        asking = asyncio.create_task(http.post(URL, json=HI | {"stream": streams}))
        await rig.until_seen()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await rig.until_ended()
        (job_id,) = rig.worker.ended
        assert (await rig.queue.status(job_id)).state is JobState.FINISHED
    assert list(rig.worker.ended.values()) == [EndReason.CANCELLED]
