"""A job's answer as its worker holds it: what is committed, what is written but unconfirmed, what is fresh.

Per choice, over its token list, half-open:

    [0, sealed)       in an entry whose cursor is fixed: committed, or in a write that may have happened
    [sealed, len)     fresh: joins the next entry, however many steps it took

Entries get their cursors when they are sealed for a write and never change after it: a write that timed out
may have reached the server, so its retry must be the same entries. Until then fresh tokens coalesce, so that
a slow server costs fewer, larger entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.queueing.events import (
    ChoiceEnd,
    ChoiceResult,
    Cursor,
    EndEvent,
    EndReason,
    JobError,
    JobResult,
    TokenEvent,
    TokenLogprob,
    Usage,
)

_SEVERITY = (EndReason.STOP, EndReason.LENGTH, EndReason.CANCELLED, EndReason.DEADLINE, EndReason.ERROR)
"""A job of several choices ends for the last of these that any choice ended for."""


_ENTRY_BYTES = 30
_TOKEN_BYTES = 6
_LOGPROB_BYTES = 40
"""An entry without its text; an id and its comma; one alternative's brackets, id and number. Measured."""


def _bytes_of(text: str, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> int:
    """About what the server keeps of an entry: each text once, and as hex of its bytes once more."""
    text_bytes = len(text) if text.isascii() else len(text.encode(errors="replace"))
    size = _ENTRY_BYTES + text_bytes + _TOKEN_BYTES * len(token_ids)
    if logprobs:  # seldom, and this is asked for every token
        raw = [chosen.raw for chosen in logprobs] + [best.raw for chosen in logprobs for best in chosen.top]
        size += sum([_LOGPROB_BYTES + 3 * len(text) for text in raw])
    return size


@dataclass(slots=True)
class _Choice:
    texts: list[str] = field(default_factory=list[str])
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    finish_reason: EndReason | None = None
    sealed_texts: int = 0
    sealed_tokens: int = 0
    sealed_logprobs: int = 0

    def add(
        self, text: str, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob], end: EndReason | None
    ) -> None:
        if text:
            self.texts.append(text)
        self.token_ids += token_ids
        if logprobs:
            self.logprobs += logprobs
        self.finish_reason = end

    def seal(self) -> None:
        self.sealed_texts = len(self.texts)
        self.sealed_tokens = len(self.token_ids)
        self.sealed_logprobs = len(self.logprobs)

    @property
    def fresh_text(self) -> str:
        return "".join(self.texts[self.sealed_texts :])


class Answer:
    """All choices of one job. Owned by the I/O loop; starts from what earlier owners committed.

    ``opening``: text that every choice begins with, and that travels with its first token.
    """

    def __init__(self, choices: int, committed: Sequence[TokenEvent] = (), opening: str = "") -> None:
        self._choices = [_Choice() for _ in range(choices)]
        self._unwritten: list[TokenEvent] = []
        self._has_fresh_tokens = False
        self._stream_bytes = 0
        for entry in committed:
            self.add(entry.choice, entry.text, entry.token_ids, entry.logprobs, entry.finish_reason)
        for choice in self._choices:
            choice.seal()
            if opening and not choice.token_ids:
                choice.texts.append(opening)
        self._has_fresh_tokens = False
        self._sealed_tokens = sum(choice.sealed_tokens for choice in self._choices)
        self.resumed_tokens = self._sealed_tokens
        self.written_entries = len(committed)
        """Entries known to be in the queue, earlier owners' included."""

    def token_ids(self, choice: int) -> tuple[int, ...]:
        """The tokens of a choice so far."""
        return tuple(self._choices[choice].token_ids)

    def finish_reason(self, choice: int) -> EndReason | None:
        """Why a choice ended, or None while it runs."""
        return self._choices[choice].finish_reason

    @property
    def is_ended(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.finish_reason is not None for choice in self._choices)

    @property
    def has_failed(self) -> bool:
        """Whether a choice ended with an error."""
        return any(choice.finish_reason is EndReason.ERROR for choice in self._choices)

    @property
    def completion_tokens(self) -> int:
        """Tokens over all choices."""
        return sum(len(choice.token_ids) for choice in self._choices)

    @property
    def stream_bytes(self) -> int:
        """About what the token stream takes, committed entries included."""
        return self._stream_bytes

    def add(
        self,
        choice: int,
        text: str,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprob] = (),
        finish_reason: EndReason | None = None,
    ) -> None:
        """Take in what a step brought to one choice."""
        self._choices[choice].add(text, token_ids, logprobs, finish_reason)
        if token_ids:
            self._has_fresh_tokens = True
        self._stream_bytes += _bytes_of(text, token_ids, logprobs)

    def cut(self, reason: EndReason) -> None:
        """End every choice that still runs."""
        for choice in self._choices:
            if choice.finish_reason is None:
                choice.finish_reason = reason

    def seal(self) -> tuple[TokenEvent, ...]:
        """Fix the fresh tokens into entries; returns all that no write has confirmed yet, in order."""
        if not self._has_fresh_tokens:
            return tuple(self._unwritten)
        for index, choice in enumerate(self._choices):
            token_ids = choice.token_ids[choice.sealed_tokens :]
            if token_ids:
                self._sealed_tokens += len(token_ids)
                self._unwritten.append(
                    TokenEvent(
                        Cursor(self._sealed_tokens),
                        index,
                        choice.fresh_text,
                        tuple(token_ids),
                        tuple(choice.logprobs[choice.sealed_logprobs :]) if choice.logprobs else (),
                        choice.finish_reason,
                    )
                )
                choice.seal()
        self._has_fresh_tokens = False
        return tuple(self._unwritten)

    @property
    def has_unwritten(self) -> bool:
        """Whether a write has something to say."""
        return self._has_fresh_tokens or bool(self._unwritten)

    def confirm(self, entries: int) -> None:
        """Forget the first ``entries`` sealed ones: they are in the queue."""
        del self._unwritten[:entries]
        self.written_entries += entries

    def end(
        self, job_id: str, prompt_tokens: int, error: JobError | None = None
    ) -> tuple[EndEvent, JobResult]:
        """The terminal event and the answer to keep; call ``cut`` and ``seal`` first."""
        reasons = [choice.finish_reason or EndReason.ERROR for choice in self._choices]
        reason = max(reasons, key=_SEVERITY.index, default=EndReason.ERROR)
        usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=self._sealed_tokens)
        # Text that is still fresh has no new token to travel with: the end itself releases it.
        ends = tuple(
            ChoiceEnd(choice_reason, tail=choice.fresh_text)
            for choice, choice_reason in zip(self._choices, reasons, strict=True)
        )
        results = tuple(
            ChoiceResult("".join(c.texts), tuple(c.token_ids), choice_reason, tuple(c.logprobs))
            for c, choice_reason in zip(self._choices, reasons, strict=True)
        )
        cursor = Cursor(self._sealed_tokens, 1)
        return EndEvent(cursor, reason, ends, usage, error), JobResult(job_id, reason, results, usage, error)
