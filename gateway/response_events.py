"""The events of a response's stream, each with a number that any gateway gives it again.

    0            response.created
    1            response.in_progress           with the first token
    2, 3         response.output_item.added, response.content_part.added
    3 + t        response.output_text.delta     the text that came with the answer's t-th token
    3 + T + 1    response.output_text.delta     text held back to the end, if there is any; T: all tokens
    3 + T + 2    response.output_text.done
    3 + T + 3    response.content_part.done
    3 + T + 4    response.output_item.done
    3 + T + 5    response.completed, response.incomplete or response.failed

A number follows from the position in the job's token stream alone, so ``starting_after`` needs no memory.
Tokens without text of their own (half a character, a possible stop string) leave gaps; numbers always grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headway.gateway.response_objects import ResponseForm, shown_logprobs, text_part
from headway.gateway.sse import frame
from headway.queueing.events import Cursor, EndEvent, EndReason, JobResult, TokenEvent

_Body = dict[str, object]
_Made = tuple[int, str, _Body]
"""Number, type, and what else the event says."""

BEFORE_TOKENS: Final = 3
AT_END: Final = 5

_LAST: Final = {EndReason.STOP: "response.completed", EndReason.LENGTH: "response.incomplete"}
"""Any other end is ``response.failed``, whose response says ``failed`` or ``cancelled``."""


@dataclass(frozen=True, slots=True)
class ResponseEvent:
    """One event; its object has ``type`` and ``sequence_number``."""

    number: int
    kind: str
    body: dict[str, object]

    def frame(self) -> bytes:
        """As it is sent; a reader resumes from the number as ``Last-Event-ID`` or ``starting_after``."""
        content = {"type": self.kind, "sequence_number": self.number} | self.body
        return frame(content, event_id=str(self.number), event=self.kind)


def cursor_after(number: int | None) -> Cursor:
    """Where in the job's token stream a reader goes on who has this event; None: it has nothing."""
    return Cursor(max(0, (number or 0) - BEFORE_TOKENS), 0)


def last_number(tokens: int) -> int:
    """The number of the last event of an answer with so many tokens."""
    return BEFORE_TOKENS + tokens + AT_END


class ResponseEvents:
    """Turns one job's events, from a reader's position on, into those of the response."""

    def __init__(self, form: ResponseForm, after: int | None = None) -> None:
        self._form = form
        self._after = -1 if after is None else after
        self._is_open = False

    def begin(self) -> list[ResponseEvent]:
        """The event of the acceptance."""
        return self._wanted([(0, "response.created", {"response": self._form.begun("queued")})])

    def tokens(self, event: TokenEvent) -> list[ResponseEvent]:
        """What new tokens bring."""
        made = self._open()
        if event.text or event.logprobs:
            number = BEFORE_TOKENS + event.cursor.tokens
            made += self._wanted([(number, *self._delta(event))])
        return made

    def end(self, event: EndEvent, result: JobResult, ended_unix: int) -> list[ResponseEvent]:
        """What the job's end brings; ``ended_unix``: when that was, as its record says."""
        form, first = self._form, BEFORE_TOKENS + event.cursor.tokens
        choice = result.choices[0] if result.choices else None
        has_message = bool(choice and choice.text) or event.reason in _LAST
        made: list[_Made] = []
        if has_message:
            text, logprobs = (choice.text, choice.logprobs) if choice else ("", ())
            part: _Body = self._place() | {"content_index": 0}
            tail = event.choices[0].tail if event.choices else ""
            if tail:
                delta: _Body = part | {"delta": tail, "logprobs": shown_logprobs(())}
                made.append((first + 1, "response.output_text.delta", delta))
            done: _Body = part | {"text": text, "logprobs": shown_logprobs(logprobs)}
            closed: _Body = part | {"part": text_part(text, logprobs)}
            status = "completed" if event.reason is EndReason.STOP else "incomplete"
            item: _Body = {"output_index": 0, "item": form.message(status, text, logprobs)}
            made += [
                (first + 2, "response.output_text.done", done),
                (first + 3, "response.content_part.done", closed),
                (first + 4, "response.output_item.done", item),
            ]
        last = _LAST.get(event.reason, "response.failed")
        made.append((first + AT_END, last, {"response": form.ended(result, ended_unix)}))
        return (self._open() if has_message else []) + self._wanted(made)

    def _open(self) -> list[ResponseEvent]:
        """What comes before the first text."""
        if self._is_open:
            return []
        self._is_open = True
        form = self._form
        item: _Body = {"output_index": 0, "item": form.message("in_progress", "", is_open=True)}
        part: _Body = self._place() | {"content_index": 0, "part": text_part("")}
        return self._wanted(
            [
                (1, "response.in_progress", {"response": form.begun("in_progress")}),
                (2, "response.output_item.added", item),
                (3, "response.content_part.added", part),
            ]
        )

    def _delta(self, event: TokenEvent) -> tuple[str, dict[str, object]]:
        delta = {"content_index": 0, "delta": event.text, "logprobs": shown_logprobs(event.logprobs)}
        return "response.output_text.delta", self._place() | delta

    def _place(self) -> dict[str, object]:
        return {"item_id": self._form.message_id, "output_index": 0}

    def _wanted(self, made: Sequence[_Made]) -> list[ResponseEvent]:
        """Those that the reader does not have."""
        return [ResponseEvent(*each) for each in made if each[0] > self._after]
