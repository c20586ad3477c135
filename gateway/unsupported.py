"""OpenAI's fields that Headway does not serve: fine at the value that changes nothing, else refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from headway.gateway.errors import invalid_request
from headway.gateway.json_values import is_array, is_object

NoEffect = Mapping[str, Sequence[object]]
"""Field name to the values, besides null, that ask for nothing."""

CHAT: Final[NoEffect] = {
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}

COMPLETION: Final[NoEffect] = {"suffix": ("",)}

MESSAGE: Final[NoEffect] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "refusal": (),
}

INSTEAD: Final = {
    "functions": "describe them as 'tools'",
    "function_call": "its successors are 'tools', 'tool_choice' and 'tool_calls'",
    "suffix": "models here continue a text and cannot fill a gap; put what precedes into 'prompt'",
}
"""What to do instead, where leaving the field out is not all."""


def without_unsupported(body: dict[str, object], no_effect: NoEffect, prefix: str = "") -> dict[str, object]:
    """The body less these fields; raises ApiError 400 for one that asks for something."""
    for name, allowed in no_effect.items():
        value = body.get(name)
        if value is not None and not any(_same(value, other) for other in allowed):
            raise invalid_request(
                f"'{prefix}{name}' is not supported: {INSTEAD.get(name, 'leave it out')}",
                param=f"{prefix}{name}",
                code="unsupported",
            )
    return {name: value for name, value in body.items() if name not in no_effect}


def chat_body(body: dict[str, object]) -> dict[str, object]:
    """A chat request's body and its messages less what is not served."""
    kept = without_unsupported(body, CHAT)
    messages = kept.get("messages")
    if is_array(messages):
        kept["messages"] = [_message(index, message) for index, message in enumerate(messages)]
    return kept


def _message(index: int, message: object) -> object:
    if not is_object(message):
        return message  # its shape is refused next, with all others
    prefix = f"messages[{index}]."
    if message.get("role") == "function":
        raise invalid_request(
            "messages of role 'function' are not supported: send role 'tool' with the 'tool_call_id'",
            param=f"{prefix}role",
            code="unsupported",
        )
    return without_unsupported(message, MESSAGE, prefix)


def _same(value: object, other: object) -> bool:
    # JSON's true is not its 1, though Python's is.
    return type(value) is type(other) and value == other
