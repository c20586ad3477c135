"""An answer or calls of tools: one grammar (Lark's notation) for both.

Calls stand where the model was taught to write them, so that what it would have liked to do is what it may
do. Beside a form of the answer they come first or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from headway.gateway.marked_calls import HERMES, MISTRAL
from headway.gateway.tool_requests import Tool, call_schema, calls_schema
from headway.queueing.answer_formats import ToolFormat
from headway.queueing.messages import Constraint

_WHITESPACE: Final = r"[ \t]|\r?\n[ \t]{0,32}"
"""Between two tokens of JSON: bounded, or a model could go on with blanks up to its length limit."""


def answer_or_calls(
    schema: dict[str, Any] | bool, tools: Sequence[Tool], tool_format: ToolFormat, *, is_parallel: bool
) -> Constraint | None:
    """The constraint; None for a format whose calls no JSON Schema describes."""
    more = "+" if is_parallel else ""
    match tool_format:
        case "hermes" | "auto":
            called = f'"{HERMES}" SPACE? object SPACE? "</tool_call>" SPACE?'
            calls = f"calls: called{more}\ncalled: {called}\nobject: {_json(call_schema(tools))}"
        case "llama3_json":
            separated = '(";" SPACE? object)*' if is_parallel else ""
            calls = f"calls: object {separated}\nobject: {_json(call_schema(tools, 'parameters'))}"
        case "mistral":
            most = None if is_parallel else 1
            calls = f'calls: "{MISTRAL}" SPACE? list\nlist: {_json(calls_schema(tools, most=most))}'
        case _:
            return None
    return Constraint(
        grammar=f"start: answer | calls\nanswer: {_json(schema)}\n{calls}\nSPACE: /[ \\n]{{1,4}}/\n"
    )


def words_or_strict_calls(
    tools: Sequence[Tool], tool_format: ToolFormat, *, is_parallel: bool
) -> Constraint | None:
    """Words that nothing binds until a call begins, which then has the arguments of its function's schema.

    Functions that are not ``strict`` take any object. None for a format whose calls are no JSON behind a mark
    of plain text: a token of its own, such as Mistral's, could not be chosen where a grammar binds.
    """
    bound = [tool if tool.function.strict else _open(tool) for tool in tools]
    key = "parameters" if tool_format == "llama3_json" else "arguments"
    match tool_format:
        case "hermes":
            calls = (
                f"called{'*' if is_parallel else '?'} WORDS\nWORDS: /(?s:.*)/\ncalled: begun SPACE? object"
            )
            calls += f' SPACE? "</tool_call>"\nbegun[lazy]: WORDS "{HERMES}"'
        case "llama3_json":
            separated = '(";" SPACE? object)*' if is_parallel else ""
            calls = f"WORDS | SPACE? object {separated}\nWORDS: /\\s*([^{{\\s](?s:.*))?/"
        case _:
            return None
    called = _json(call_schema(bound, key))
    return Constraint(grammar=f"start: {calls}\nobject: {called}\nSPACE: /[ \\n]{{1,4}}/\n")


def _open(tool: Tool) -> Tool:
    function = tool.function.model_copy(update={"parameters": {"type": "object"}})
    return tool.model_copy(update={"function": function})


def _json(schema: dict[str, Any] | bool) -> str:
    """A rule's right side for JSON of this schema."""
    given: dict[str, Any] = {} if isinstance(schema, bool) else schema
    bounded = {**given, "x-guidance": {"whitespace_pattern": _WHITESPACE}}
    # "::=" would make it EBNF for whoever reads the constraint; it can only stand inside a string here.
    return "%json " + json.dumps(bounded, ensure_ascii=False).replace("::=", "\\u003a:=")
