"""``strict`` functions in ``auto``: words are free, and a call that begins is bound to its schema."""

from __future__ import annotations

from typing import Any

import httpx
import llguidance
import pytest
from tests.gateway.conftest import Rig
from tests.gateway.scripted_worker import card
from tests.gateway.test_chat import CHAT, URL
from tests.gateway.test_refusals import error_of

from headway.gateway.answer_or_calls import words_or_strict_calls
from headway.gateway.tool_requests import Function, Tool
from headway.queueing.answer_formats import ToolFormat
from headway.services.constraint import constraint_refusal, source_of

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str, *, strict: bool, parameters: dict[str, Any] = CITY) -> Tool:
    return Tool(type="function", function=Function(name=name, parameters=parameters, strict=strict))


TOOLS = (tool("weather", strict=True), tool("free", strict=False))
WEATHER = '{"name": "weather", "arguments": {"city": "Paris"}}'
FREE = '{"name": "free", "arguments": {"any": [1]}}'


def fits(tool_format: ToolFormat, text: str, *, is_parallel: bool = True) -> bool:
    """Whether an answer may be this text, and end there."""
    constraint = words_or_strict_calls(TOOLS, tool_format, is_parallel=is_parallel)
    assert constraint is not None
    assert constraint_refusal(constraint) is None
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), source_of(constraint), log_level=0)
    return all(matcher.consume_token(byte) for byte in text.encode()) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("", True),
        ("Hello, world.\n", True),
        ("a < b, a <tool_cal, {]", True),
        (f"<think>Shall I?</think>\nYes.\n<tool_call>\n{WEATHER}\n</tool_call>", True),
        (f"<tool_call>{WEATHER}</tool_call>\n<tool_call>{FREE}</tool_call> Done.", True),
        (f"<tool_call>{WEATHER.replace('Paris', '<tool_call>')}</tool_call>", True),
        (f"<tool_call>{WEATHER}", False),
        ('<tool_call>{"name": "weather", "arguments": {"city": 3}}</tool_call>', False),
        ('<tool_call>{"name": "weather", "arguments": {}}</tool_call>', False),
        (f"<tool_call>{FREE.replace('free', 'other')}</tool_call>", False),
        ("<tool_call> no JSON", False),
    ],
)
def test_a_hermes_call_is_bound_from_its_mark_on_and_words_are_not(text: str, may: bool) -> None:
    assert fits("hermes", text) is may


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("Hello {x}", True),
        ("", True),
        (WEATHER.replace("arguments", "parameters"), True),
        (f"{FREE};{WEATHER}".replace("arguments", "parameters"), True),
        (WEATHER, False),
        ("{]", False),
    ],
)
def test_a_bare_call_is_bound_where_the_answer_begins_with_its_brace(text: str, may: bool) -> None:
    assert fits("llama3_json", text) is may


def test_formats_whose_calls_no_grammar_binds_are_left_free() -> None:
    for name in ("auto", "mistral", "pythonic", "qwen3_coder", "none"):
        assert words_or_strict_calls(TOOLS, name, is_parallel=True) is None


@pytest.mark.parametrize("strict", [True, False])
async def test_a_strict_function_binds_calls_of_a_job_and_leaves_room_for_thoughts(
    rig: Rig, http: httpx.AsyncClient, strict: bool
) -> None:
    await rig.queue.heartbeat(card(tool_format="hermes", reasoning_format="think"), ttl_seconds=60)
    tools = [{"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": strict}}]
    assert (await http.post(URL, json=CHAT | {"tools": tools})).status_code == 200
    (job,) = rig.worker.seen
    assert (job.constraint is not None) is strict
    assert job.chat_template_kwargs == ({"enable_thinking": None} if strict else {})


async def test_a_strict_schema_that_cannot_be_held_is_refused_by_name(
    rig: Rig, http: httpx.AsyncClient
) -> None:
    await rig.queue.heartbeat(card(tool_format="hermes", reasoning_format="think"), ttl_seconds=60)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}, "strict": True}}]
    answer = await http.post(URL, json=CHAT | {"tools": tools})
    assert (answer.status_code, error_of(answer)["param"]) == (400, "tools")
    assert rig.worker.seen == []
