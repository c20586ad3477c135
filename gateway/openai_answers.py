"""OpenAI's objects around an answer: whole ones, and the chunks of a stream.

Chunks are made of job events in order; whatever way the text was cut into events, the chunks of a choice
concatenate to the text of the whole answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.gateway.answer_form import PartReader
from headway.gateway.answer_parts import CallBegun, Part
from headway.gateway.openai_logprobs import started_chars
from headway.gateway.openai_styles import SHOWN, Envelope, Place, Style, finish_reason
from headway.queueing.events import (
    EndEvent,
    EndReason,
    JobResult,
    StreamEvent,
    TokenEvent,
    TokenLogprob,
    Usage,
)


def usage_object(usages: Sequence[Usage]) -> dict[str, object]:
    """OpenAI's ``usage``, summed over the jobs of one request."""
    prompt_tokens = sum(usage.prompt_tokens for usage in usages)
    completion_tokens = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in usages)},
    }


def whole_answer(
    style: Style, envelope: Envelope, answer_id: str, results: Sequence[JobResult]
) -> dict[str, object]:
    """The answer to a request that did not ask for a stream; results in the order of the prompts."""
    choices = [
        style.whole(
            Place(answer_id, prompt * envelope.choices_per_prompt + index),
            choice,
            envelope,
            envelope.echo(prompt),
        )
        for prompt, result in enumerate(results)
        for index, choice in enumerate(result.choices)
    ]
    usage = usage_object([result.usage for result in results])
    return envelope.head(answer_id, style.kind) | {"choices": choices, "usage": usage}


@dataclass(slots=True)
class _ChoiceProgress:
    place: Place
    reader: PartReader
    offset_chars: int = 0
    has_calls: bool = False
    is_closed: bool = False

    def parts(self, text: str, *, is_last: bool) -> list[Part]:
        """What this text brings; with the last one also what was held back."""
        parts = self.reader.feed(text) + (self.reader.close() if is_last else [])
        self.has_calls = self.has_calls or any(isinstance(part, CallBegun) for part in parts)
        return parts


@dataclass(slots=True)
class ChunkStream:
    """Turns the events of a request's jobs into chunks; keeps only what the next chunk needs to know."""

    style: Style
    envelope: Envelope
    answer_id: str
    includes_usage: bool
    _choices: dict[int, _ChoiceProgress] = field(default_factory=dict[int, _ChoiceProgress])
    _usages: list[Usage] = field(default_factory=list[Usage])

    def chunks(self, prompt: int, event: StreamEvent) -> list[dict[str, object]]:
        """The chunks that this event of that prompt's job brings."""
        if isinstance(event, EndEvent):
            self._usages.append(event.usage)
            choices = self._end_choices(prompt, event)
        else:
            choices = self._token_choices(prompt, event)
        return [self._chunk([choice]) for choice in choices]

    def usage_chunk(self) -> dict[str, object] | None:
        """The last chunk, if asked for: no choices, and the numbers."""
        return self._chunk([], usage_object(self._usages)) if self.includes_usage else None

    def _token_choices(self, prompt: int, event: TokenEvent) -> list[dict[str, object]]:
        made, choice = self._open(prompt, event.choice)
        logprobs = event.logprobs if self.envelope.wants_logprobs else ()
        ends = event.finish_reason in SHOWN
        made += self._new(choice, choice.parts(event.text, is_last=ends), logprobs)
        return made + self._close(choice, event.finish_reason)

    def _end_choices(self, prompt: int, event: EndEvent) -> list[dict[str, object]]:
        made: list[dict[str, object]] = []
        for number, end in enumerate(event.choices):
            if not end.tail and end.finish_reason not in SHOWN and not self._is_open(prompt, number):
                continue
            opening, choice = self._open(prompt, number)
            made += opening + self._new(choice, choice.parts(end.tail, is_last=True), ())
            made += self._close(choice, end.finish_reason)
        return made

    def _new(
        self, choice: _ChoiceProgress, parts: list[Part], logprobs: tuple[TokenLogprob, ...]
    ) -> list[dict[str, object]]:
        if not parts and not logprobs:
            return []
        delta = self.style.delta(choice.place, parts, logprobs or None, choice.offset_chars)
        choice.offset_chars += sum(started_chars(item.raw) for item in logprobs)
        return [delta]

    def _is_open(self, prompt: int, number: int) -> bool:
        return prompt * self.envelope.choices_per_prompt + number in self._choices

    def _open(self, prompt: int, number: int) -> tuple[list[dict[str, object]], _ChoiceProgress]:
        """The choice, and the chunk that it begins with if it has not begun."""
        index = prompt * self.envelope.choices_per_prompt + number
        if index in self._choices:
            return [], self._choices[index]
        choice = _ChoiceProgress(Place(self.answer_id, index), self.envelope.form.reader())
        self._choices[index] = choice
        opening = self.style.opening(choice.place, self.envelope.echo(prompt))
        return [] if opening is None else [opening], choice

    def _close(self, choice: _ChoiceProgress, reason: EndReason | None) -> list[dict[str, object]]:
        # OpenAI has no finish_reason for a choice cut short (cancel, deadline, error): an error follows.
        if reason is None or reason not in SHOWN or choice.is_closed:
            return []
        choice.is_closed = True
        return [self.style.closing(choice.place, finish_reason(reason, has_calls=choice.has_calls))]

    def _chunk(self, choices: list[dict[str, object]], usage: object = None) -> dict[str, object]:
        chunk = self.envelope.head(self.answer_id, self.style.chunk_kind) | {"choices": choices}
        return chunk | {"usage": usage} if self.includes_usage else chunk
