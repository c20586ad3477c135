"""``response_format`` and vLLM's names for the same: what they ask of the job, and what is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from llguidance import LLMatcher
from tests.gateway.conftest import Rig
from tests.gateway.scripted_worker import Script, card
from tests.gateway.test_chat import CHAT, URL
from tests.gateway.test_completions import ASK
from tests.gateway.test_completions import URL as COMPLETIONS_URL
from tests.gateway.test_refusals import error_of
from tests.gateway.test_tools import CLOCK

from headway.engine.grammar_source import _byte_tokenizer, grammar_source
from headway.queueing.messages import Constraint

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NAMED = {"name": "answer", "schema": SCHEMA, "strict": True}


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_schema": {"type": "object"}}),
        ({"response_format": {"type": "json_schema", "json_schema": NAMED}}, {"json_schema": SCHEMA}),
        ({"structured_outputs": {"json": SCHEMA}}, {"json_schema": SCHEMA}),
        ({"structured_outputs": {"json_object": True}}, {"json_schema": {"type": "object"}}),
        ({"structured_outputs": {"regex": "[ab]+"}}, {"regex": "[ab]+"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ["a", "b"]}),
        ({"structured_outputs": {"grammar": "start: /a+/"}}, {"grammar": "start: /a+/"}),
        ({"guided_json": '{"type": "integer"}'}, {"json_schema": {"type": "integer"}}),
        ({"guided_regex": "a"}, {"regex": "a"}),
        ({"guided_choice": ["a"]}, {"choice": ["a"]}),
        ({"guided_grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
    ],
)
async def test_each_way_to_ask_becomes_the_jobs_constraint(
    http: httpx.AsyncClient, rig: Rig, fields: dict[str, Any], constraint: dict[str, Any] | None
) -> None:
    for url, body in ((URL, CHAT), (COMPLETIONS_URL, ASK)):
        response = await http.post(url, json=body | fields)
        assert response.status_code == 200, response.text
    expected = None if constraint is None else Constraint.model_validate(constraint)
    assert [job.constraint for job in rig.worker.seen] == [expected, expected]


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "belong together"),
        (
            {"response_format": {"type": "json_schema", "json_schema": NAMED | {"name": "an answer"}}},
            "response_format.json_schema.name",
            "match",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "Missing",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "give one of"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice", "one of them"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "at least 1"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "Unknown"),
        ({"guided_choice": []}, "guided_choice", "at least 1"),
        ({"guided_json": "{"}, "guided_json", "not valid JSON"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "one of them"),
    ],
)
async def test_a_form_that_makes_no_sense_is_refused(
    http: httpx.AsyncClient, rig: Rig, fields: dict[str, Any], param: str, word: str
) -> None:
    response = await http.post(URL, json=CHAT | fields)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["param"] == param
    assert word in error["message"]
    assert rig.worker.seen == []


@pytest.mark.parametrize(
    ("tool_format", "call"),
    [
        ("hermes", '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'),
        ("mistral", '[TOOL_CALLS][{"name": "clock", "arguments": {}}]'),
        ("llama3_json", '{"name": "clock", "parameters": {}}'),
    ],
)
async def test_with_tools_the_form_binds_what_is_no_call(
    http: httpx.AsyncClient, rig: Rig, tool_format: str, call: str
) -> None:
    await rig.queue.heartbeat(card(tool_format=tool_format, reasoning_format="none"), ttl_seconds=60)
    asked = CHAT | {"tools": [CLOCK], "response_format": {"type": "json_schema", "json_schema": NAMED}}
    rig.worker.script = Script(pieces=(call[:3], call[3:]))
    choice = (await http.post(URL, json=asked)).json()["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "clock", "arguments": "{}"}
    text = '{"a": 1, "b": "<tool_call>[TOOL_CALLS]"}'
    rig.worker.script = Script(pieces=(text,))
    choice = (await http.post(URL, json=asked)).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    for job in rig.worker.seen:
        assert job.constraint is not None
        grammar = job.constraint.grammar or ""
        assert grammar.startswith("start: answer | calls\n")
        for begun in (call, '{"a": 1}'):
            assert fits(grammar, begun)
        for begun in ("hello", call.replace("clock", "block")):
            assert not fits(grammar, begun)


def fits(grammar: str, text: str) -> bool:
    """Whether the grammar library lets a text through, byte by byte."""
    matcher = LLMatcher(_byte_tokenizer(), grammar_source(grammar))
    return matcher.validate_tokens(list(text.encode())) == len(text.encode())


async def test_a_form_that_is_no_json_leaves_no_room_for_calls(http: httpx.AsyncClient, rig: Rig) -> None:
    response = await http.post(URL, json=CHAT | {"tools": [CLOCK], "guided_regex": "a"})
    assert error_of(response)["param"] == "guided_regex"
    assert "tool_choice" in error_of(response)["message"]
