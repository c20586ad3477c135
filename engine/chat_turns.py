"""Turns of a conversation in the shape that chat templates are written for.

Templates on the hub print a call's arguments with ``tojson``, so they want an object, and join contents as
texts. A template that knows no tools is shown them in words: in the system's turn, in the form that SmolLM2
and other small models were trained on; what its model called and was answered comes as turns that it knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

Turn = dict[str, Any]

INTRODUCTION: Final = """\
You have access to the following tools:
<tools>{tools}</tools>

If tools help to answer, call them: write nothing but a list of calls in exactly this form, with the right \
types of arguments:
<tool_call>[
{{"name": "function_name", "arguments": {{"argument": "value"}}}}
]</tool_call>
Their answers follow in <tool_response></tool_response>. If no tool helps, or the request lacks an argument \
that a tool needs, say so in words."""


def template_turns(messages: Iterable[Mapping[str, Any]], *, knows_developer: bool) -> list[Turn]:
    """The messages with arguments as objects and contents as texts; answers name their function."""
    turns: list[Turn] = []
    called: dict[str, str] = {}
    for message in messages:
        turn = dict(message)
        turn["content"] = turn.get("content") or ""
        if turn["role"] == "developer" and not knows_developer:
            turn["role"] = "system"  # what OpenAI's newer models call it
        if not turn.get("tool_calls"):
            turn.pop("tool_calls", None)  # templates ask whether it is defined
        else:
            turn["tool_calls"] = [_with_object(call) for call in turn["tool_calls"]]
            called |= {call["id"]: call["function"]["name"] for call in turn["tool_calls"] if "id" in call}
        if turn["role"] == "tool" and "name" not in turn and turn.get("tool_call_id") in called:
            turn["name"] = called[turn["tool_call_id"]]
        turns.append(turn)
    return turns


def in_words(turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """The same conversation for a template that knows neither tools, nor calls, nor their answers."""
    told: list[Turn] = []
    for turn, before in zip(turns, [None, *turns], strict=False):
        if turn["role"] == "tool":
            answer = f"<tool_response>\n{turn['content']}\n</tool_response>"
            if before is not None and before["role"] == "tool":
                # Several answers share a turn: templates want user and assistant by turns.
                told[-1] = told[-1] | {"content": f"{told[-1]['content']}\n{answer}"}
            else:
                told.append({"role": "user", "content": answer})
        elif turn.get("tool_calls"):
            told.append({"role": turn["role"], "content": _called(turn)})
        else:
            told.append(turn)
    if not tools:
        return told
    introduction = INTRODUCTION.format(tools=json.dumps([_shown(tool) for tool in tools], ensure_ascii=False))
    if told and told[0]["role"] == "system":
        system = told[0] | {"content": f"{told[0]['content']}\n\n{introduction}".lstrip()}
        return [system, *told[1:]]
    return [{"role": "system", "content": introduction}, *told]


def _with_object(call: Mapping[str, Any]) -> Turn:
    function = dict(call["function"])
    try:
        arguments: object = json.loads(function["arguments"])
    except (ValueError, TypeError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        function["arguments"] = cast("dict[str, object]", arguments)
    return dict(call) | {"function": function}


def _called(turn: Turn) -> str:
    calls = [
        {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in turn["tool_calls"]
    ]
    written = f"<tool_call>{json.dumps(calls, ensure_ascii=False)}</tool_call>"
    return f"{turn['content']}\n{written}".lstrip()


def _shown(tool: Mapping[str, Any]) -> object:
    return tool.get("function", tool)
