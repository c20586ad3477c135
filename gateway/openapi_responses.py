"""Schemas of responses, of their items and of the events of their streams."""

from __future__ import annotations

from typing import Final

from headway.gateway.openapi_words import (
    ANY_OBJECT,
    COUNT,
    FLAG,
    INTEGER,
    METADATA,
    NULL,
    NUMBER,
    TEXT,
    Schema,
    array,
    const,
    nullable,
    obj,
    one_of,
    page,
    ref,
    tagged,
)

_TOKEN: Final = {"token": TEXT, "logprob": NUMBER, "bytes": array(COUNT)}
_LOGPROBS: Final = array(obj(_TOKEN | {"top_logprobs": array(obj(_TOKEN))}))
_PART: Final = obj(
    {"type": const("output_text"), "text": TEXT, "annotations": array(ANY_OBJECT), "logprobs": _LOGPROBS}
)
_THOUGHT: Final = obj({"type": const("reasoning_text"), "text": TEXT})
_ERROR: Final = obj({"code": TEXT, "message": TEXT})
_FORMAT: Final = obj(
    {"type": one_of("text", "json_object", "json_schema")},
    {
        "name": nullable(TEXT),
        "description": nullable(TEXT),
        "schema": ANY_OBJECT,
        "strict": nullable(FLAG),
    },
)
_USAGE: Final = obj(
    {
        "input_tokens": COUNT,
        "input_tokens_details": obj({"cached_tokens": COUNT, "cache_write_tokens": COUNT}),
        "output_tokens": COUNT,
        "output_tokens_details": obj({"reasoning_tokens": COUNT}),
        "total_tokens": COUNT,
    }
)
STATUSES: Final = ("queued", "in_progress", "completed", "incomplete", "cancelled", "failed")


def _event(kind: str, **members: Schema) -> Schema:
    return obj({"type": const(kind), "sequence_number": COUNT} | members)


_WHOLE: Final = ref("Response")
_PLACE: Final = {"item_id": TEXT, "output_index": COUNT, "content_index": COUNT}
_ITEM: Final = {"output_index": COUNT, "item": ref("ResponseItem")}
_ANY_PART: Final[Schema] = {"anyOf": [_PART, _THOUGHT]}

EVENTS: Final[dict[str, Schema]] = {
    "response.created": _event("response.created", response=_WHOLE),
    "response.in_progress": _event("response.in_progress", response=_WHOLE),
    "response.output_item.added": _event("response.output_item.added", **_ITEM),
    "response.content_part.added": _event("response.content_part.added", **_PLACE, part=_ANY_PART),
    "response.output_text.delta": _event(
        "response.output_text.delta", **_PLACE, delta=TEXT, logprobs=_LOGPROBS
    ),
    "response.output_text.done": _event("response.output_text.done", **_PLACE, text=TEXT, logprobs=_LOGPROBS),
    "response.reasoning_text.delta": _event("response.reasoning_text.delta", **_PLACE, delta=TEXT),
    "response.reasoning_text.done": _event("response.reasoning_text.done", **_PLACE, text=TEXT),
    "response.content_part.done": _event("response.content_part.done", **_PLACE, part=_ANY_PART),
    "response.output_item.done": _event("response.output_item.done", **_ITEM),
    "response.completed": _event("response.completed", response=_WHOLE),
    "response.incomplete": _event("response.incomplete", response=_WHOLE),
    "response.failed": _event("response.failed", response=_WHOLE),
}

RESPONSE_SCHEMAS: Final[dict[str, Schema]] = {
    "ResponseMessage": obj(
        {
            "id": TEXT,
            "type": const("message"),
            "status": one_of("in_progress", "completed", "incomplete"),
            "role": const("assistant"),
            "content": array(_PART),
        }
    ),
    "ResponseReasoning": obj(
        {
            "id": TEXT,
            "type": const("reasoning"),
            "status": one_of("in_progress", "completed", "incomplete"),
            "summary": array(ANY_OBJECT),
            "content": array(_THOUGHT),
        }
    ),
    "ResponseItem": {"anyOf": [ref("ResponseMessage"), ref("ResponseReasoning")]},
    "Response": tagged(
        "response",
        {
            "id": TEXT,
            "created_at": INTEGER,
            "completed_at": nullable(INTEGER),
            "status": one_of(*STATUSES),
            "background": FLAG,
            "error": nullable(_ERROR),
            "incomplete_details": nullable(obj({"reason": const("max_output_tokens")})),
            "instructions": nullable(TEXT),
            "max_output_tokens": nullable(COUNT),
            "max_tool_calls": NULL,
            "metadata": METADATA,
            "model": TEXT,
            "output": array(ref("ResponseItem")),
            "parallel_tool_calls": FLAG,
            "previous_response_id": nullable(TEXT),
            "prompt_cache_key": nullable(TEXT),
            "reasoning": obj({"effort": NULL, "summary": NULL}),
            "safety_identifier": nullable(TEXT),
            "service_tier": const("default"),
            "store": FLAG,
            "temperature": NUMBER,
            "text": obj({"format": _FORMAT}),
            "tool_choice": const("auto"),
            "tools": array(ANY_OBJECT),
            "top_logprobs": COUNT,
            "top_p": NUMBER,
            "truncation": const("disabled"),
            "usage": nullable(_USAGE),
            "user": nullable(TEXT),
        },
    ),
    "ResponseDeleted": tagged("response", {"id": TEXT, "deleted": {"const": True}}),
    "InputItem": {
        "anyOf": [
            obj(
                {
                    "id": TEXT,
                    "type": const("message"),
                    "status": const("completed"),
                    "role": one_of("user", "assistant", "system", "developer"),
                    "content": array(
                        {"anyOf": [_PART, obj({"type": const("input_text"), "text": TEXT})]},
                    ),
                }
            ),
            obj(
                {
                    "id": TEXT,
                    "type": const("function_call"),
                    "status": const("completed"),
                    "call_id": TEXT,
                    "name": TEXT,
                    "arguments": TEXT,
                }
            ),
            obj(
                {
                    "id": TEXT,
                    "type": const("function_call_output"),
                    "status": const("completed"),
                    "call_id": TEXT,
                    "output": TEXT,
                }
            ),
        ]
    },
    "InputItems": page(ref("InputItem")),
    "ResponseEvent": {"anyOf": [*EVENTS.values(), ref("Error")]},
}
