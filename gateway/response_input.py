"""Between a response's input items and the turns of a conversation."""

from __future__ import annotations

from typing import Any, Final

from headway.gateway.errors import ApiError, invalid_request
from headway.gateway.json_values import is_array, is_object
from headway.gateway.response_item_shapes import ITEM_SHAPES, Item, TextPart, check_shape
from headway.queueing.messages import Message

Turn = dict[str, Any]
"""A message of the job contract, not yet validated."""

_TEXT_PARTS: Final = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_ROLES: Final = ("user", "assistant", "system", "developer")


def turns_of(given: str | list[dict[str, Any]] | None) -> list[Turn]:
    """The turns of ``input``, in order; raises ApiError 400 that names the item at fault.

    Items that a client got as output are taken back as they are. Reasoning is left out, as the models' own
    chat templates do with that of earlier turns.
    """
    if given is None:
        return []
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    turns: list[Turn] = []
    for index, item in enumerate(given):
        _add(turns, item, f"input[{index}]")
    return turns


def _add(turns: list[Turn], item: dict[str, Any], where: str) -> None:
    kind = item.get("type", "message")
    check_shape(ITEM_SHAPES.get(str(kind), Item), item, where)
    match kind:
        case "message":
            turns.append(_message(item, where))
        case "reasoning":
            return
        case "function_call":
            _add_call(turns, item, where)
        case "function_call_output":
            turns.append(
                {
                    "role": "tool",
                    "content": _text(item.get("output"), f"{where}.output"),
                    "tool_call_id": _string(item, "call_id", where),
                }
            )
        case "item_reference":
            raise _unsupported(
                f"{where}: items are not kept by their ids here: send the item itself, or "
                "'previous_response_id'",
                f"{where}.type",
            )
        case _:
            raise _unsupported(
                f"{where}: items of type {str(kind)[:40]!r} are not supported: send messages",
                f"{where}.type",
            )


def _message(item: dict[str, Any], where: str) -> Turn:
    role = item.get("role")
    if role not in _ROLES:
        raise invalid_request(f"{where}.role must be one of {', '.join(_ROLES)}", param=f"{where}.role")
    return {"role": role, "content": _text(item.get("content"), f"{where}.content")}


def _add_call(turns: list[Turn], item: dict[str, Any], where: str) -> None:
    """Calls made side by side belong to one turn, together with the text before them."""
    call = {
        "id": _string(item, "call_id", where),
        "function": {
            "name": _string(item, "name", where),
            "arguments": _string(item, "arguments", where),
        },
    }
    if not turns or turns[-1]["role"] != "assistant":
        turns.append({"role": "assistant", "content": None})
    turns[-1].setdefault("tool_calls", []).append(call)


def _text(content: object, where: str) -> str:
    """A text, or text parts as one, a line each."""
    if isinstance(content, str):
        return content
    if not is_array(content):
        raise invalid_request(f"{where}: give a text, or a list of text parts", param=where)
    return "\n".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: object, where: str) -> str:
    kind = part.get("type") if is_object(part) else None
    if isinstance(kind, str) and kind not in _TEXT_PARTS:
        raise _unsupported(
            f"{where}: content parts of type {kind[:40]!r} are not supported yet: send text", where
        )
    text = part.get(_TEXT_PARTS[kind]) if is_object(part) and isinstance(kind, str) else None
    if not isinstance(text, str):
        raise invalid_request(
            f'{where}: a content part must be {{"type": "input_text", "text": …}}', param=where
        )
    check_shape(TextPart, part, where)
    return text


def _string(item: dict[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise invalid_request(f"{where}.{name}: give a text", param=f"{where}.{name}")
    return value


def _unsupported(message: str, param: str) -> ApiError:
    return invalid_request(message, param=param, code="unsupported")


def items_of(messages: tuple[Message, ...], item_id: str) -> list[dict[str, object]]:
    """Turns as input items, the first one first; their ids are ``item_id`` and a number."""
    items: list[dict[str, object]] = []
    for message in messages:
        for item in _items(message):
            items.append({"id": f"{item_id}_{len(items)}"} | item)
    return items


def _items(message: Message) -> list[dict[str, object]]:
    if message.role == "tool":
        return [
            {
                "type": "function_call_output",
                "status": "completed",
                "call_id": message.tool_call_id,
                "output": message.content or "",
            }
        ]
    items: list[dict[str, object]] = []
    if message.content is not None:
        kind = "output_text" if message.role == "assistant" else "input_text"
        part: dict[str, object] = {"type": kind, "text": message.content}
        if kind == "output_text":
            part |= {"annotations": [], "logprobs": []}
        items.append({"type": "message", "status": "completed", "role": message.role, "content": [part]})
    return items + [
        {
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.function.name,
            "arguments": call.function.arguments,
        }
        for call in message.tool_calls
    ]
