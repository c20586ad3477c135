"""Conversations with tools, as chat templates of both kinds get to see them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headway.engine.chat_template import ChatTemplate

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
}
CALL: dict[str, Any] = {
    "id": "abc123def",
    "type": "function",
    "function": {"name": "get_time", "arguments": '{"zone": "CET"}'},
}
TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What time is it?"},
    {"role": "assistant", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "12:00", "tool_call_id": "abc123def"},
    {"role": "tool", "content": "13:00", "tool_call_id": "abc123def"},
    {"role": "user", "content": "Thanks"},
]
PLAIN = "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}"


def test_a_template_that_knows_tools_gets_arguments_as_objects_and_the_functions_name() -> None:
    source = (
        "{% for t in tools %}<{{ t | tojson }}>{% endfor %}"
        "{% for m in messages %}{% if m.tool_calls is defined %}{% for c in m.tool_calls %}"
        "({{ c.id }} {{ c.function.arguments.zone }}{{ c.function.arguments | tojson }}){% endfor %}"
        "{% elif m.role == 'tool' %}{{ m.name }}={{ m.content }};{% endif %}{% endfor %}"
    )
    template = ChatTemplate(source, {})
    assert template.knows_tools
    call = '(abc123def CET{"zone": "CET"})'
    assert template.render(TURNS, [TOOL]) == f"<{json.dumps(TOOL)}>{call}{call}get_time=12:00;get_time=13:00;"


def test_a_template_without_tools_is_told_of_them_in_words() -> None:
    template = ChatTemplate(PLAIN, {})
    assert not template.knows_tools
    text = template.render(TURNS, [TOOL])
    assert text.startswith("[system|Be brief.\n\nYou have access")
    assert json.dumps(TOOL["function"]) in text
    calls = json.dumps([{"name": "get_time", "arguments": {"zone": "CET"}}] * 2)
    assert f"[assistant|<tool_call>{calls}</tool_call>]" in text
    answers = "".join(f"<tool_response>\n{time}\n</tool_response>\n" for time in ("12:00", "13:00"))
    assert f"[user|{answers.rstrip()}]" in text
    assert text.endswith("[user|Thanks]")


def test_without_a_system_turn_the_tools_make_one() -> None:
    text = ChatTemplate(PLAIN, {}).render([{"role": "user", "content": "hi"}], [TOOL])
    assert text.startswith("[system|You have access")
    assert text.endswith("[user|hi]")


@pytest.mark.parametrize("arguments", ["{", "[1]", '"text"', "1" * 5000, "[" * 100_000])
def test_arguments_that_are_no_object_stay_as_they_were_written(arguments: str) -> None:
    call = CALL | {"function": {"name": "f", "arguments": arguments}}
    source = "{{ tools }}{{ messages[0].tool_calls[0].function.arguments }}"
    template = ChatTemplate(source, {})
    assert template.render([{"role": "assistant", "tool_calls": [call]}]) == f"None{arguments}"


def test_a_conversation_with_tools_takes_the_models_second_template() -> None:
    template = ChatTemplate("plain", {}, tool_source="{{ (tools or []) | length }} tools")
    assert template.render([{"role": "user", "content": "hi"}]) == "plain"
    assert template.render([{"role": "user", "content": "hi"}], [TOOL]) == "1 tools"
    assert template.render(TURNS) == "0 tools"


def test_a_developer_is_the_system_where_a_template_does_not_know_one() -> None:
    turns = [{"role": "developer", "content": "x"}]
    assert ChatTemplate(PLAIN, {}).render(turns) == "[system|x]"
    assert ChatTemplate(PLAIN + "{# developer #}", {}).render(turns) == "[developer|x]"


def test_names_reach_the_template_and_overrule_nothing_of_ours() -> None:
    source = "{{ enable_thinking }} {{ add_generation_prompt }} {{ bos_token }} {{ messages[0].content }}"
    names = {"enable_thinking": False, "add_generation_prompt": False, "bos_token": "x", "messages": "y"}
    rendered = ChatTemplate(source, {"bos_token": "<s>"}).render(
        [{"role": "user", "content": "m"}], (), names
    )
    assert rendered == "False False <s> m"
