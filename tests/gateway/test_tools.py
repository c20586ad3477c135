"""Tools over HTTP: what the job gets to know of them, and how calls look in answers."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Rig
from tests.gateway.scripted_worker import Script, card
from tests.gateway.test_chat import CHAT, URL, chunks_of
from tests.gateway.test_refusals import error_of

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}},
            "required": ["city"],
            "$defs": {"city": {"type": "string"}},
        },
        "strict": True,
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}
TOOLS = {"tools": [WEATHER, CLOCK]}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CALLING = Script(
    pieces=(
        "Let me",
        " look.",
        "\n<tool",
        '_call>{"name": "get_',
        'weather", "arguments": {"city"',
        ': "Paris"}}',
        "</tool_call>",
    )
)


async def test_a_whole_answer_has_its_calls(http: httpx.AsyncClient, rig: Rig) -> None:
    rig.worker.script = CALLING
    choice = (await http.post(URL, json=CHAT | TOOLS)).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": "Let me look.", "refusal": None}
    assert call["type"] == "function"
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    assert call["id"].isalnum()
    assert len(call["id"]) == 9
    (job,) = rig.worker.seen
    assert [tool["function"]["name"] for tool in job.tools] == ["get_weather", "clock"]
    assert "strict" not in job.tools[0]["function"]
    assert job.constraint is None


async def test_a_stream_brings_names_and_arguments_as_they_come(http: httpx.AsyncClient, rig: Rig) -> None:
    rig.worker.script = CALLING
    chunks = await chunks_of(http, **TOOLS)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Let me look."
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert calls[0]["function"]["name"] == "get_weather"
    assert {call["index"] for call in calls} == {0}
    assert [call.get("id") is not None for call in calls] == [True, False]
    assert "".join(call["function"]["arguments"] for call in calls) == '{"city": "Paris"}'
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_an_answer_that_only_calls_has_no_content(http: httpx.AsyncClient, rig: Rig) -> None:
    rig.worker.script = Script(pieces=('<tool_call>{"name": "clock"}</tool_call>',))
    message = (await http.post(URL, json=CHAT | TOOLS)).json()["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["function"] == {"name": "clock", "arguments": "{}"}


async def test_each_choice_has_its_own_calls_and_a_cut_one_says_length(
    http: httpx.AsyncClient, rig: Rig
) -> None:
    rig.worker.script = CALLING
    choices = (await http.post(URL, json=CHAT | TOOLS | {"n": 2})).json()["choices"]
    ids = [choice["message"]["tool_calls"][0]["id"] for choice in choices]
    assert len(set(ids)) == 2
    cut = (await http.post(URL, json=CHAT | TOOLS | {"max_tokens": 5})).json()["choices"][0]
    assert cut["finish_reason"] == "length"
    assert cut["message"]["tool_calls"][0]["function"]["arguments"] == '{"city"'


async def test_without_tools_marks_are_words(http: httpx.AsyncClient, rig: Rig) -> None:
    rig.worker.script = CALLING
    for fields in ({}, TOOLS | {"tool_choice": "none"}):
        choice = (await http.post(URL, json=CHAT | fields)).json()["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["content"] == "".join(CALLING.pieces)
    assert rig.worker.seen[1].tools == ()


async def test_the_models_own_format_is_read_as_its_worker_says(http: httpx.AsyncClient, rig: Rig) -> None:
    await rig.queue.heartbeat(card(tool_format="llama3_json", reasoning_format="none"), ttl_seconds=60)
    rig.worker.script = Script(pieces=('{"name": "clock", "parameters": {}}',))
    choice = (await http.post(URL, json=CHAT | TOOLS)).json()["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "clock"
    rig.worker.script = Script(pieces=("<think>a</think>b",))
    choice = (await http.post(URL, json=CHAT | TOOLS)).json()["choices"][0]
    assert choice["message"]["content"] == "<think>a</think>b"


async def test_thoughts_have_a_field_of_their_own(http: httpx.AsyncClient, rig: Rig) -> None:
    rig.worker.script = Script(pieces=("<thi", "nk>\nHm", ", so.\n</th", "ink>\n\n", "Yes."))
    message = (await http.post(URL, json=CHAT)).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm, so.", "Yes.")
    deltas = [chunk["choices"][0]["delta"] for chunk in await chunks_of(http)]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm, so."
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes."


async def test_logprobs_of_held_back_text_still_arrive(http: httpx.AsyncClient, rig: Rig) -> None:
    rig.worker.script = CALLING
    chunks = await chunks_of(http, logprobs=True, **TOOLS)
    tokens = [
        item["token"]
        for chunk in chunks
        for choice in chunk["choices"]
        for item in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert tokens == list(CALLING.pieces)


@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_a_forced_call_binds_the_answer(http: httpx.AsyncClient, rig: Rig, choice: Any) -> None:
    call = {"name": "get_weather", "arguments": {"city": "Rome"}}
    text = json.dumps([call] if choice == "required" else call["arguments"])
    rig.worker.script = Script(pieces=(text[:5], text[5:]))
    answered = (await http.post(URL, json=CHAT | TOOLS | {"tool_choice": choice})).json()["choices"][0]
    assert answered["finish_reason"] == "tool_calls"
    assert json.loads(answered["message"]["tool_calls"][0]["function"]["arguments"]) == {"city": "Rome"}
    constraint = rig.worker.seen[0].constraint
    assert constraint is not None
    assert isinstance(constraint.json_schema, dict)
    if choice == "required":
        items = constraint.json_schema["items"]["anyOf"]
        assert [item["properties"]["name"]["const"] for item in items] == ["get_weather", "clock"]
        city = constraint.json_schema["$defs"]["tool0"]["properties"]["city"]
        assert city == {"$ref": "#/$defs/tool0/$defs/city"}, (
            "a reference keeps its meaning under the new root"
        )
    else:
        assert constraint.json_schema == WEATHER["function"]["parameters"] | {"additionalProperties": False}


async def test_allowed_tools_are_a_selection(http: httpx.AsyncClient, rig: Rig) -> None:
    rig.worker.script = Script(pieces=('[{"name": "clock", "arguments": {}}]',))
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "clock"}}]}
    fields = TOOLS | {
        "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed},
        "parallel_tool_calls": False,
    }
    assert (await http.post(URL, json=CHAT | fields)).status_code == 200
    (job,) = rig.worker.seen
    assert [tool["function"]["name"] for tool in job.tools] == ["clock"]
    assert job.constraint is not None
    assert isinstance(job.constraint.json_schema, dict)
    assert job.constraint.json_schema["maxItems"] == 1


async def test_a_conversation_with_calls_reaches_the_job(http: httpx.AsyncClient, rig: Rig) -> None:
    rig.worker.script = CALLING
    first = (await http.post(URL, json=CHAT | TOOLS)).json()["choices"][0]["message"]
    call_id = first["tool_calls"][0]["id"]
    turns = [
        *CHAT["messages"],
        first | {"content": None},
        {"role": "tool", "tool_call_id": call_id, "content": "22 °C"},
    ]
    response = await http.post(URL, json=CHAT | TOOLS | {"messages": turns, "reasoning_effort": "none"})
    assert response.status_code == 200, response.text
    job = rig.worker.seen[-1]
    assert job.messages is not None
    assert job.messages[1].tool_calls[0].function.arguments == '{"city": "Paris"}'
    assert (job.messages[2].role, job.messages[2].tool_call_id) == ("tool", call_id)
    assert job.chat_template_kwargs == {"reasoning_effort": "none", "enable_thinking": False}


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"tools": [CLOCK, CLOCK]}, "tools[1].function.name", "its own name"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type", "function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "match"),
        ({"tools": [CLOCK], "tool_choice": "always"}, "tool_choice", "required"),
        ({"tools": [CLOCK], "tool_choice": {"type": "function"}}, "tool_choice", "name"),
        ({"tools": [CLOCK], "tool_choice": NAMED}, "tool_choice", "not among the tools"),
        ({"tool_choice": "required"}, "tool_choice", "needs 'tools'"),
        ({"functions": [{"name": "f"}]}, "functions", "'tools'"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort", "high"),
        ({"chat_template_kwargs": {"x": [1]}}, "chat_template_kwargs.x.bool", ""),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]", "tool_call_id"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": "x",
                        "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": ""}}],
                    }
                ]
            },
            "messages[0]",
            "assistant",
        ),
    ],
)
async def test_what_cannot_be_called_is_refused(
    http: httpx.AsyncClient, rig: Rig, fields: dict[str, Any], param: str, word: str
) -> None:
    response = await http.post(URL, json=CHAT | fields)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["param"] == param
    assert word in error["message"]
    assert rig.worker.seen == []
