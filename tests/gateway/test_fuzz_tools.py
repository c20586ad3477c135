"""Requests with tools, forms and tokens, changed anywhere: an answer, or a refusal in OpenAI's shape."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Rig
from tests.gateway.scripted_worker import Script
from tests.gateway.test_refusals import error_of

from headway.queueing.messages import Job

SEED = 20_261_130
COUNT = 150

FUNCTION: dict[str, Any] = {
    "name": "f",
    "description": "d",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n"}},
        "$defs": {"n": {"type": "integer"}},
    },
}
SCHEMA: dict[str, Any] = {"name": "x", "strict": True, "schema": {"type": "object", "properties": {"a": {}}}}
CALL: dict[str, Any] = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TURNS: list[dict[str, Any]] = [
    {"role": "developer", "content": [{"type": "text", "text": "x"}]},
    {"role": "user", "content": "hi", "name": "ann"},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
    {"role": "tool", "content": "1", "tool_call_id": "a"},
]
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": FUNCTION}]
VALID: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {
            "model": "tiny",
            "messages": TURNS,
            "tools": TOOLS,
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "parallel_tool_calls": False,
            "reasoning_effort": "low",
            "chat_template_kwargs": {"a": 1, "b": None},
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    (
        "/v1/chat/completions",
        {
            "model": "tiny",
            "messages": TURNS,
            "tools": TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "f"}}],
                },
            },
        },
    ),
    (
        "/v1/chat/completions",
        {
            "model": "tiny",
            "messages": TURNS,
            "tools": TOOLS,
            "response_format": {"type": "json_schema", "json_schema": SCHEMA},
        },
    ),
    (
        "/v1/chat/completions",
        {"model": "tiny", "messages": TURNS, "structured_outputs": {"json": {"type": "object"}}},
    ),
    ("/v1/completions", {"model": "tiny", "prompt": "a", "guided_choice": ["a", "b"]}),
    (
        "/v1/completions",
        {"model": "tiny", "prompt": [1], "guided_json": '{"type": "object"}', "guided_regex": None},
    ),
    ("/tokenize", {"model": "tiny", "prompt": "a", "add_special_tokens": True, "return_token_strs": True}),
    (
        "/tokenize",
        {"model": "tiny", "messages": TURNS, "tools": TOOLS, "chat_template_kwargs": {"a": True}},
    ),
    ("/detokenize", {"model": "tiny", "tokens": [1, 2]}),
]
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        1e300,
        2**70,
        "",
        "x",
        "\x00",
        "é" * 3000,
        "auto",
        "required",
        "#",
        "#/$defs/n",
        "none",
    ),
    *(
        [],
        {},
        [None],
        [[]],
        {"": {}},
        {"type": "function"},
        {"$ref": "#"},
        {"name": "f"},
        ["a"],
        '{"a"',
        "{}",
    ),
)


def nodes(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value, as what holds it and the key there."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in inner for place in [(value, key), *nodes(item)]]


def changed(rng: random.Random) -> tuple[str, dict[str, Any]]:
    url, body = copy.deepcopy(rng.choice(VALID))
    for _ in range(rng.choice((1, 1, 2, 4))):
        holder, key = rng.choice(nodes(body) or [(body, "x")])
        match rng.randrange(4):
            case 0 if isinstance(holder, dict):
                holder.pop(key, None)
            case 1 if isinstance(holder, dict):
                holder[rng.choice(("type", "x", "name", "$ref", "content", "schema"))] = copy.deepcopy(
                    rng.choice(VALUES)
                )
            case 2 if isinstance(holder, list):
                holder.append(copy.deepcopy(rng.choice([holder[key], *VALUES])))
            case _:
                holder[key] = copy.deepcopy(rng.choice(VALUES))
    return url, body


def answer(job: Job) -> tuple[str, ...]:
    if job.task is not None:
        return (json.dumps({"token_ids": [1], "texts": None, "max_model_len": 8} | {"text": "a"}),)
    return ("<think>a</think>[", '{"name": "f", "arguments": {"a"', ": 1}}]")


@pytest.mark.parametrize("number", range(len(VALID)))
async def test_what_is_changed_is_valid(http: httpx.AsyncClient, rig: Rig, number: int) -> None:
    rig.worker.script = Script(pieces_of=answer)
    url, body = VALID[number]
    response = await http.post(url, json=body)
    assert response.status_code == 200, response.text


async def test_whatever_is_changed_is_answered_or_refused(http: httpx.AsyncClient, rig: Rig) -> None:
    rig.worker.script = Script(pieces_of=answer)
    rng = random.Random(SEED)
    refused = 0
    for _ in range(COUNT):
        url, body = changed(rng)
        response = await http.post(url, json=body)
        assert response.status_code < 500, (response.text, url, body)
        if response.status_code != 200:
            refused += 1
            error = error_of(response)
            assert len(response.content) < 4000, "an error does not repeat the body"
            assert error["param"] is None or len(error["param"]) < 300
    assert COUNT // 4 < refused < COUNT
