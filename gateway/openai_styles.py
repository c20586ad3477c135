"""How chat and completions word one choice: whole, and in the chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from headway.gateway.answer_form import AnswerForm, Gathered
from headway.gateway.answer_parts import CallArgued, CallBegun, Part, Said, Thought
from headway.gateway.call_ids import call_id
from headway.gateway.job_fields import FieldNames
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
    form: AnswerForm = field(default_factory=AnswerForm)
    """How the text of a choice is read; completions are nothing but words."""
    names: FieldNames = field(default_factory=dict[str, str])
    """What the request calls the jobs' fields."""

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


@dataclass(frozen=True, slots=True)
class Place:
    """Which choice of which answer is being worded."""

    answer_id: str
    index: int

    def call_id(self, call: int) -> str:
        """The id of one of its calls."""
        return call_id(self.answer_id, self.index, call)


def finish_reason(reason: EndReason, *, has_calls: bool) -> str:
    """OpenAI's word for the end of a choice: one that called and was not cut ends for its calls."""
    return "tool_calls" if has_calls and reason is EndReason.STOP else SHOWN.get(reason, reason.value)


class Style(Protocol):
    """How one endpoint words its answers."""

    id_prefix: str
    kind: str
    chunk_kind: str

    def whole(self, place: Place, choice: ChoiceResult, envelope: Envelope, echo: str) -> dict[str, object]:
        """One finished choice."""
        ...

    def opening(self, place: Place, echo: str) -> dict[str, object] | None:
        """The chunk choice before the first text, if the endpoint has one."""
        ...

    def delta(
        self,
        place: Place,
        parts: Sequence[Part],
        logprobs: tuple[TokenLogprob, ...] | None,
        offset_chars: int,
    ) -> dict[str, object]:
        """What is new of one choice."""
        ...

    def closing(self, place: Place, finish_reason: str) -> dict[str, object]:
        """The chunk choice that ends one choice."""
        ...


class ChatStyle:
    """``/v1/chat/completions``."""

    id_prefix = "chatcmpl-"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def whole(self, place: Place, choice: ChoiceResult, envelope: Envelope, echo: str) -> dict[str, object]:
        """One finished choice."""
        gathered = Gathered.from_text(envelope.form, choice.text)
        return {
            "index": place.index,
            "message": _message(place, gathered, echo),
            "logprobs": chat_logprobs(choice.logprobs) if envelope.wants_logprobs else None,
            "finish_reason": finish_reason(choice.finish_reason, has_calls=bool(gathered.calls)),
        }

    def opening(self, place: Place, echo: str) -> dict[str, object] | None:
        """The role comes first, with an empty text, as OpenAI sends it."""
        return _chat_chunk(place, {"role": "assistant", "content": echo})

    def delta(
        self,
        place: Place,
        parts: Sequence[Part],
        logprobs: tuple[TokenLogprob, ...] | None,
        offset_chars: int,
    ) -> dict[str, object]:
        """What is new of one choice: words, thoughts and calls side by side, each in its order."""
        del offset_chars  # completions only
        shown = chat_logprobs(logprobs) if logprobs else None
        return _chat_chunk(place, _delta(place, parts), logprobs=shown)

    def closing(self, place: Place, finish_reason: str) -> dict[str, object]:
        """An empty delta with the reason."""
        return _chat_chunk(place, {}, finish_reason=finish_reason)


class CompletionStyle:
    """``/v1/completions``."""

    id_prefix = "cmpl-"
    kind = "text_completion"
    chunk_kind = "text_completion"

    def whole(self, place: Place, choice: ChoiceResult, envelope: Envelope, echo: str) -> dict[str, object]:
        """One finished choice."""
        logprobs = completion_logprobs(choice.logprobs, 0) if envelope.wants_logprobs else None
        reason = finish_reason(choice.finish_reason, has_calls=False)
        return _completion_choice(place, echo + choice.text, logprobs, reason)

    def opening(self, place: Place, echo: str) -> dict[str, object] | None:
        """The prompt, if it was to be echoed."""
        return _completion_choice(place, echo, None, None) if echo else None

    def delta(
        self,
        place: Place,
        parts: Sequence[Part],
        logprobs: tuple[TokenLogprob, ...] | None,
        offset_chars: int,
    ) -> dict[str, object]:
        """New text of one choice."""
        shown = completion_logprobs(logprobs, offset_chars) if logprobs else None
        return _completion_choice(place, _words(parts), shown, None)

    def closing(self, place: Place, finish_reason: str) -> dict[str, object]:
        """An empty text with the reason."""
        return _completion_choice(place, "", None, finish_reason)


def _message(place: Place, gathered: Gathered, echo: str) -> dict[str, object]:
    """A whole assistant's turn; ``content`` is null where there is nothing but thoughts or calls."""
    words = echo + gathered.words
    is_silent = not words and (gathered.calls or gathered.thoughts)
    message: dict[str, object] = {
        "role": "assistant",
        "content": None if is_silent else words,
        "refusal": None,
    }
    if gathered.thoughts:
        message["reasoning_content"] = gathered.thoughts
    if gathered.calls:
        message["tool_calls"] = [
            {
                "id": place.call_id(number),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for number, (name, arguments) in enumerate(gathered.calls)
        ]
    return message


def _delta(place: Place, parts: Sequence[Part]) -> dict[str, object]:
    thoughts = "".join(part.text for part in parts if isinstance(part, Thought))
    calls: dict[int, dict[str, object]] = {}
    for part in parts:
        if isinstance(part, CallBegun):
            calls[part.call] = _begun(place, part, _argued(parts, part.call))
        elif isinstance(part, CallArgued) and part.call not in calls:
            function = {"arguments": _argued(parts, part.call)}
            calls[part.call] = {"index": part.call, "function": function}
    delta: dict[str, object] = {"reasoning_content": thoughts} if thoughts else {}
    if calls:
        delta["tool_calls"] = list(calls.values())
    words = _words(parts)
    # A chunk that brings nothing but log-probabilities has an empty text.
    return delta | {"content": words} if words or not delta else delta


def _begun(place: Place, part: CallBegun, arguments: str) -> dict[str, object]:
    return {
        "index": part.call,
        "id": place.call_id(part.call),
        "type": "function",
        "function": {"name": part.name, "arguments": arguments},
    }


def _argued(parts: Sequence[Part], call: int) -> str:
    return "".join(part.text for part in parts if isinstance(part, CallArgued) and part.call == call)


def _words(parts: Sequence[Part]) -> str:
    return "".join([part.text for part in parts if isinstance(part, Said)])


def _chat_chunk(
    place: Place, delta: dict[str, object], *, logprobs: object = None, finish_reason: str | None = None
) -> dict[str, object]:
    return {"index": place.index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _completion_choice(
    place: Place, text: str, logprobs: object, finish_reason: str | None
) -> dict[str, object]:
    return {"index": place.index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
