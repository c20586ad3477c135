"""Schemas of what chat, completions and models answer."""

from __future__ import annotations

from typing import Final

from headway.gateway.openapi_words import (
    COUNT,
    INTEGER,
    NULL,
    NUMBER,
    TEXT,
    Schema,
    array,
    const,
    listed,
    nullable,
    obj,
    one_of,
    ref,
    tagged,
)

_HEAD: Final = {"id": TEXT, "created": INTEGER, "model": TEXT, "system_fingerprint": TEXT}
_TOKEN: Final = {"token": TEXT, "logprob": NUMBER, "bytes": array(COUNT)}
_CALLED: Final = obj({"name": TEXT, "arguments": TEXT})
_ENDS: Final = one_of("stop", "length", "tool_calls")

CHAT_SCHEMAS: Final[dict[str, Schema]] = {
    "Usage": obj(
        {
            "prompt_tokens": COUNT,
            "completion_tokens": COUNT,
            "total_tokens": COUNT,
            "prompt_tokens_details": obj({"cached_tokens": COUNT}),
        }
    ),
    "ChatLogprobs": obj(
        {"content": array(obj(_TOKEN | {"top_logprobs": array(obj(_TOKEN))})), "refusal": NULL}
    ),
    "ToolCall": obj({"id": TEXT, "type": const("function"), "function": _CALLED}),
    "ChatMessage": obj(
        {"role": const("assistant"), "content": nullable(TEXT), "refusal": NULL},
        {"reasoning_content": TEXT, "tool_calls": array(ref("ToolCall"))},
    ),
    "ChatCompletion": tagged(
        "chat.completion",
        _HEAD
        | {
            "choices": array(
                obj(
                    {
                        "index": COUNT,
                        "message": ref("ChatMessage"),
                        "logprobs": nullable(ref("ChatLogprobs")),
                        "finish_reason": _ENDS,
                    }
                )
            ),
            "usage": ref("Usage"),
        },
    ),
    "ToolCallDelta": obj(
        {"index": COUNT, "function": obj({"arguments": TEXT}, {"name": TEXT})},
        {"id": TEXT, "type": const("function")},
    ),
    "ChatCompletionChunk": tagged(
        "chat.completion.chunk",
        _HEAD
        | {
            "choices": array(
                obj(
                    {
                        "index": COUNT,
                        "delta": obj(
                            {},
                            {
                                "role": const("assistant"),
                                "content": TEXT,
                                "reasoning_content": TEXT,
                                "tool_calls": array(ref("ToolCallDelta")),
                            },
                        ),
                        "logprobs": nullable(ref("ChatLogprobs")),
                        "finish_reason": nullable(_ENDS),
                    }
                )
            )
        },
        {"usage": nullable(ref("Usage"))},
    ),
    "CompletionLogprobs": obj(
        {
            "tokens": array(TEXT),
            "token_logprobs": array(NUMBER),
            "top_logprobs": nullable(array({"type": "object", "additionalProperties": NUMBER})),
            "text_offset": array(COUNT),
        }
    ),
    "Completion": tagged(
        "text_completion",
        _HEAD
        | {
            "choices": array(
                obj(
                    {
                        "index": COUNT,
                        "text": TEXT,
                        "logprobs": nullable(ref("CompletionLogprobs")),
                        # Null in the chunks of a stream before a choice's last one.
                        "finish_reason": nullable(one_of("stop", "length")),
                    }
                )
            )
        },
        {"usage": nullable(ref("Usage"))},
    ),
    "Model": tagged(
        "model",
        {
            "id": TEXT,
            "created": INTEGER,
            "owned_by": TEXT,
            "max_model_len": nullable(COUNT),
            "workers": COUNT,
            "ready_workers": COUNT,
        },
    ),
    "ModelList": listed(ref("Model")),
    "Tokens": obj(
        {
            "count": COUNT,
            "max_model_len": COUNT,
            "tokens": array(COUNT),
            "token_strs": nullable(array(TEXT)),
        }
    ),
    "DetokenizedText": obj({"prompt": TEXT}),
}
