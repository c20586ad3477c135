"""Log-probabilities as chat and as completions show them."""

from __future__ import annotations

from typing import Final

from headway.queueing.events import TokenLogprob, TopLogprob

FLOOR: Final = -9999.0
"""What OpenAI shows for a token that cannot be chosen; JSON has no minus infinity."""


def chat_logprobs(logprobs: tuple[TokenLogprob, ...]) -> dict[str, object]:
    """The ``logprobs`` object of a chat choice or chunk."""
    content = [
        _chat_token(item) | {"top_logprobs": [_chat_token(top) for top in item.top]} for item in logprobs
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(logprobs: tuple[TokenLogprob, ...], first_offset_chars: int) -> dict[str, object]:
    """The ``logprobs`` object of a completions choice or chunk, whose first token begins at that offset."""
    offsets: list[int] = []
    offset = first_offset_chars
    for item in logprobs:
        offsets.append(offset)
        offset += started_chars(item.raw)
    tops = [{top.text: _finite(top.logprob) for top in item.top} for item in logprobs]
    return {
        "tokens": [item.text for item in logprobs],
        "token_logprobs": [_finite(item.logprob) for item in logprobs],
        "top_logprobs": tops if any(tops) else None,
        "text_offset": offsets,
    }


def started_chars(raw: bytes) -> int:
    """How many characters begin in these bytes of UTF-8: a split character counts where it starts."""
    return sum(byte & 0xC0 != 0x80 for byte in raw)


def native_logprobs(logprobs: tuple[TokenLogprob, ...]) -> list[dict[str, object]]:
    """As the jobs API shows them: chat's members and the token ids."""
    return [
        _chat_token(item)
        | {"token_id": item.token_id}
        | {"top": [_chat_token(top) | {"token_id": top.token_id} for top in item.top]}
        for item in logprobs
    ]


def _chat_token(item: TokenLogprob | TopLogprob) -> dict[str, object]:
    return {"token": item.text, "logprob": _finite(item.logprob), "bytes": list(item.raw)}


def _finite(logprob: float) -> float:
    return max(logprob, FLOOR)
