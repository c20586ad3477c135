"""OpenAI's objects around an answer: whole ones, and the chunks of a stream.

Chunks are made of job events in order; whatever way the text was cut into events, the chunks of a choice
concatenate to the text of the whole answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.gateway.openai_logprobs import started_chars
from headway.gateway.openai_styles import SHOWN, Envelope, Style
from headway.queueing.events import EndEvent, EndReason, JobResult, StreamEvent, TokenEvent, Usage


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
        style.whole(prompt * envelope.choices_per_prompt + index, choice, envelope, envelope.echo(prompt))
        for prompt, result in enumerate(results)
        for index, choice in enumerate(result.choices)
    ]
    usage = usage_object([result.usage for result in results])
    return envelope.head(answer_id, style.kind) | {"choices": choices, "usage": usage}


@dataclass(slots=True)
class _ChoiceProgress:
    offset_chars: int = 0
    is_closed: bool = False


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
        index = prompt * self.envelope.choices_per_prompt + event.choice
        made = self._open(index, prompt)
        logprobs = event.logprobs if self.envelope.wants_logprobs else ()
        if event.text or logprobs:
            progress = self._choices[index]
            made.append(self.style.delta(index, event.text, logprobs, progress.offset_chars))
            progress.offset_chars += sum(started_chars(item.raw) for item in logprobs)
        return made + self._close(index, event.finish_reason)

    def _end_choices(self, prompt: int, event: EndEvent) -> list[dict[str, object]]:
        made: list[dict[str, object]] = []
        for number, end in enumerate(event.choices):
            index = prompt * self.envelope.choices_per_prompt + number
            if end.tail or end.finish_reason in SHOWN:
                made += self._open(index, prompt)
            if end.tail:
                made.append(self.style.delta(index, end.tail, None, self._choices[index].offset_chars))
            made += self._close(index, end.finish_reason)
        return made

    def _open(self, index: int, prompt: int) -> list[dict[str, object]]:
        if index in self._choices:
            return []
        self._choices[index] = _ChoiceProgress()
        opening = self.style.opening(index, self.envelope.echo(prompt))
        return [] if opening is None else [opening]

    def _close(self, index: int, reason: EndReason | None) -> list[dict[str, object]]:
        # OpenAI has no finish_reason for a choice cut short (cancel, deadline, error): an error follows.
        if reason is None or reason not in SHOWN or self._choices[index].is_closed:
            return []
        self._choices[index].is_closed = True
        return [self.style.closing(index, SHOWN[reason])]

    def _chunk(self, choices: list[dict[str, object]], usage: object = None) -> dict[str, object]:
        chunk = self.envelope.head(self.answer_id, self.style.chunk_kind) | {"choices": choices}
        return chunk | {"usage": usage} if self.includes_usage else chunk
