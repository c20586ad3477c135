"""Responses built upon earlier ones, and what goes in as their input."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from tests.gateway.conftest import Rig, over, post_job
from tests.gateway.scripted_worker import Script
from tests.gateway.test_responses import HI, URL, answered
from tests.gateway.test_tenants import error_of

from headway.gateway.response_ids import response_id_of
from headway.queueing.memory_queue import MemoryQueue


async def test_a_response_goes_on_from_an_earlier_one_without_its_instructions(
    client: AsyncOpenAI, rig: Rig
) -> None:
    first = await client.responses.create(model="tiny", input="hi", instructions="Old.")
    await client.responses.create(
        model="tiny", input="and?", instructions="New.", previous_response_id=first.id
    )
    assert [(turn.role, turn.content) for turn in rig.worker.seen[1].messages or ()] == [
        ("system", "New."),
        ("user", "hi"),
        ("assistant", "Hello, world!"),
        ("user", "and?"),
    ]


async def test_what_came_as_output_goes_back_in_as_input(client: AsyncOpenAI, rig: Rig) -> None:
    first = await client.responses.create(model="tiny", input="hi")
    given: Any = [{"role": "user", "content": "hi"}, *first.output, {"role": "user", "content": "more"}]
    await client.responses.create(model="tiny", input=given)
    assert [turn.content for turn in rig.worker.seen[1].messages or ()] == ["hi", "Hello, world!", "more"]


async def test_calls_of_tools_and_their_results_are_turns(http: httpx.AsyncClient, rig: Rig) -> None:
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    await answered(
        http,
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "id": "rs_1"},
            call | {"call_id": "c1"},
            call | {"call_id": "c2"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
        ],
    )
    messages = rig.worker.seen[0].messages
    assert messages is not None
    _, assistant, tool = messages
    assert [each.id for each in assistant.tool_calls] == ["c1", "c2"]
    assert (tool.role, tool.tool_call_id, tool.content) == ("tool", "c1", "1")


async def test_the_input_can_be_read_again(client: AsyncOpenAI) -> None:
    given: Any = [{"role": "user", "content": text} for text in ("a", "b", "c")]
    answer = await client.responses.create(model="tiny", input=given, instructions="Not an input.")
    newest = await client.responses.input_items.list(answer.id, limit=2)
    assert newest.has_more
    found = [item async for item in newest]
    texts = [item.content[0].text for item in found if item.type == "message"]  # type: ignore[union-attr]
    assert texts == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "0001" + "9" * 5000}, "limit"),
        ({"limit": "-1"}, "limit"),
        ({"order": "random"}, "order"),
        ({"after": "msg_other"}, "after"),
    ],
)
async def test_a_page_of_input_that_cannot_be_is_refused(
    query: dict[str, str], param: str, http: httpx.AsyncClient
) -> None:
    made = await answered(http)
    refused = await http.get(f"{URL}/{made['id']}/input_items", params=query)
    assert (refused.status_code, error_of(refused)["param"]) == (400, param)


async def test_a_response_that_is_not_there_cannot_be_built_upon(http: httpx.AsyncClient, rig: Rig) -> None:
    job_id = await post_job(rig)
    for earlier in ("resp_nonsense", response_id_of("tiny:0:never"), response_id_of(job_id)):
        refused = await http.post(URL, json=HI | {"previous_response_id": earlier})
        assert (refused.status_code, error_of(refused)["code"]) == (400, "previous_response_not_found")
        assert error_of(refused)["param"] == "previous_response_id"


async def test_a_response_that_has_not_ended_cannot_be_built_upon() -> None:
    async with over(MemoryQueue(), Script(hold_at=2)) as rig, rig.client() as http:
        waiting = await answered(http, background=True)
        refused = await http.post(URL, json=HI | {"previous_response_id": waiting["id"]})
        assert error_of(refused)["code"] == "previous_response_in_progress"
