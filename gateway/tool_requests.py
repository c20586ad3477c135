"""Tools that a model may call, as OpenAI's clients describe them, and whether it may, must or must not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from headway.gateway.json_values import is_array, is_object
from headway.gateway.request_shape import BOUNDED, Shape

NAME_PATTERN: Final = r"^[A-Za-z0-9_\-]{1,64}$"


_OF_OTHERS: Final = (
    *("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames"),
    *("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"),
)
"""Where one of these stands, other properties than the named may be meant."""


class Function(Shape):
    """What a function is for and what it takes (JSON Schema); without ``parameters`` it takes nothing."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    description: str | None = None
    parameters: Annotated[dict[str, Any] | None, BOUNDED] = None
    strict: bool | None = None


class Tool(Shape):
    """One tool; functions are the only kind."""

    type: Literal["function"]
    function: Function


class ToolChoice(Shape):
    """``mode``: none, auto, required or named. ``names``: the functions it is about; empty: all."""

    mode: Literal["none", "auto", "required", "named"]
    names: tuple[str, ...] = ()


def _as_choice(value: object) -> ToolChoice | None:
    if value is None:
        return None
    if value in ("none", "auto", "required"):
        return ToolChoice(mode=value)
    if is_object(value):
        match value.get("type"):
            case "function":
                return ToolChoice(mode="named", names=(_function_name(value),))
            case "allowed_tools":
                return _allowed(value.get("allowed_tools"))
            case _:
                pass
    raise PydanticCustomError(
        "tool_choice",
        'send "none", "auto", "required" or {"type": "function", "function": {"name": …}}',
    )


def _function_name(value: Mapping[str, object]) -> str:
    function = value.get("function")
    name = function.get("name") if is_object(function) else None
    if not isinstance(name, str):
        raise PydanticCustomError("tool_choice", 'send {"type": "function", "function": {"name": …}}')
    return name


def _allowed(value: object) -> ToolChoice:
    mode = value.get("mode") if is_object(value) else None
    tools = value.get("tools") if is_object(value) else None
    if mode not in ("auto", "required") or not is_array(tools) or not tools:
        raise PydanticCustomError(
            "tool_choice",
            'send {"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": […]}}',
        )
    names = tuple(_function_name(tool if is_object(tool) else {}) for tool in tools)
    return ToolChoice(mode=mode, names=names)


ToolChoiceField = Annotated[
    ToolChoice | None,
    BeforeValidator(_as_choice),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["none", "auto", "required"]},
                {
                    "type": "object",
                    "properties": {
                        "type": {"enum": ["function", "allowed_tools"]},
                        "function": {"type": "object", "properties": {"name": {"type": "string"}}},
                        "allowed_tools": {"type": "object"},
                    },
                    "required": ["type"],
                },
                {"type": "null"},
            ]
        }
    ),
]


def shown_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools as a chat template shows them: ``strict`` is for the server, not for the model."""
    return [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in tools]


def call_schema(tools: Sequence[Tool], arguments_key: str = "arguments") -> dict[str, Any]:
    """JSON Schema of one call of any of these tools."""
    named = {f"tool{number}": tool for number, tool in enumerate(tools)}
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                arguments_key: {"$ref": f"#/$defs/{key}"},
            },
            "required": ["name", arguments_key],
            "additionalProperties": False,
        }
        for key, tool in named.items()
    ]
    definitions = {key: _moved(arguments_schema(tool), f"#/$defs/{key}") for key, tool in named.items()}
    return {"$defs": definitions} | (calls[0] if len(calls) == 1 else {"anyOf": calls})


def calls_schema(tools: Sequence[Tool], *, most: int | None) -> dict[str, Any]:
    """JSON Schema of a list of calls of these tools, at least one and at most ``most``."""
    call = call_schema(tools)
    schema = {"$defs": call.pop("$defs"), "type": "array", "items": call, "minItems": 1}
    return schema if most is None else schema | {"maxItems": most}


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """JSON Schema of one call's arguments: the named ones, unless its schema speaks of others."""
    schema = tool.function.parameters or {"type": "object", "properties": {}}
    is_open = "properties" not in schema or any(keyword in schema for keyword in _OF_OTHERS)
    return schema if is_open else schema | {"additionalProperties": False}


def text_parameters(tools: Sequence[Tool]) -> dict[str, frozenset[str]]:
    """By function, the parameters that are texts, for formats that do not quote them."""
    return {tool.function.name: frozenset(_texts(tool.function.parameters or {})) for tool in tools}


def _texts(parameters: dict[str, Any]) -> list[str]:
    properties: object = parameters.get("properties")
    if not is_object(properties):
        return []
    return [
        name
        for name, schema in properties.items()
        if is_object(schema) and (schema.get("type") == "string" or _all_texts(schema.get("enum")))
    ]


def _all_texts(values: object) -> bool:
    return is_array(values) and bool(values) and all(isinstance(value, str) for value in values)


def _moved(node: Any, to: str) -> Any:
    """A schema under another root: its references begin there."""
    if is_array(node):
        return [_moved(item, to) for item in node]
    if not is_object(node):
        return node
    return {
        name: to + value[1:]
        if name == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, to)
        for name, value in node.items()
    }
