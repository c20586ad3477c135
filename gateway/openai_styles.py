"""How chat and completions word one choice: whole, and in the chunks of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from headway.gateway.openai_logprobs import chat_logprobs, completion_logprobs
from headway.queueing.events import ChoiceResult, EndReason, TokenLogprob

SHOWN: Final = {EndReason.STOP: "stop", EndReason.LENGTH: "length"}
"""Ends that OpenAI has a ``finish_reason`` for; any other is told as an error."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all objects of one answer share."""

    model: str
    created_unix: int
    fingerprint: str
    wants_logprobs: bool
    choices_per_prompt: int
    echoed: tuple[str, ...] = ()
    """The prompts, where the text of an answer is to begin with its prompt."""

    def echo(self, prompt: int) -> str:
        """What precedes the answer to this prompt."""
        return self.echoed[prompt] if self.echoed else ""

    def head(self, answer_id: str, kind: str) -> dict[str, object]:
        """The members that every object and chunk begins with."""
        return {
            "id": answer_id,
            "object": kind,
            "created": self.created_unix,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class Style(Protocol):
    """How one endpoint words its answers."""

    id_prefix: str
    kind: str
    chunk_kind: str

    def whole(self, index: int, choice: ChoiceResult, envelope: Envelope, echo: str) -> dict[str, object]:
        """One finished choice."""
        ...

    def opening(self, index: int, echo: str) -> dict[str, object] | None:
        """The chunk choice before the first text, if the endpoint has one."""
        ...

    def delta(
        self, index: int, text: str, logprobs: tuple[TokenLogprob, ...] | None, offset_chars: int
    ) -> dict[str, object]:
        """New text of one choice."""
        ...

    def closing(self, index: int, finish_reason: str) -> dict[str, object]:
        """The chunk choice that ends one choice."""
        ...


class ChatStyle:
    """``/v1/chat/completions``."""

    id_prefix = "chatcmpl-"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def whole(self, index: int, choice: ChoiceResult, envelope: Envelope, echo: str) -> dict[str, object]:
        """One finished choice."""
        return {
            "index": index,
            "message": {"role": "assistant", "content": echo + choice.text, "refusal": None},
            "logprobs": chat_logprobs(choice.logprobs) if envelope.wants_logprobs else None,
            "finish_reason": SHOWN.get(choice.finish_reason, choice.finish_reason.value),
        }

    def opening(self, index: int, echo: str) -> dict[str, object] | None:
        """The role comes first, with an empty text, as OpenAI sends it."""
        return _chat_chunk(index, {"role": "assistant", "content": echo})

    def delta(
        self, index: int, text: str, logprobs: tuple[TokenLogprob, ...] | None, offset_chars: int
    ) -> dict[str, object]:
        """New text of one choice."""
        del offset_chars  # completions only
        return _chat_chunk(index, {"content": text}, logprobs=chat_logprobs(logprobs) if logprobs else None)

    def closing(self, index: int, finish_reason: str) -> dict[str, object]:
        """An empty delta with the reason."""
        return _chat_chunk(index, {}, finish_reason=finish_reason)


class CompletionStyle:
    """``/v1/completions``."""

    id_prefix = "cmpl-"
    kind = "text_completion"
    chunk_kind = "text_completion"

    def whole(self, index: int, choice: ChoiceResult, envelope: Envelope, echo: str) -> dict[str, object]:
        """One finished choice."""
        logprobs = completion_logprobs(choice.logprobs, 0) if envelope.wants_logprobs else None
        return _completion_choice(
            index, echo + choice.text, logprobs, SHOWN.get(choice.finish_reason, choice.finish_reason.value)
        )

    def opening(self, index: int, echo: str) -> dict[str, object] | None:
        """The prompt, if it was to be echoed."""
        return _completion_choice(index, echo, None, None) if echo else None

    def delta(
        self, index: int, text: str, logprobs: tuple[TokenLogprob, ...] | None, offset_chars: int
    ) -> dict[str, object]:
        """New text of one choice."""
        shown = completion_logprobs(logprobs, offset_chars) if logprobs else None
        return _completion_choice(index, text, shown, None)

    def closing(self, index: int, finish_reason: str) -> dict[str, object]:
        """An empty text with the reason."""
        return _completion_choice(index, "", None, finish_reason)


def _chat_chunk(
    index: int, delta: dict[str, str], *, logprobs: object = None, finish_reason: str | None = None
) -> dict[str, object]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _completion_choice(
    index: int, text: str, logprobs: object, finish_reason: str | None
) -> dict[str, object]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
