"""The events of a response's stream, each with a number that any gateway gives it again.

    0                response.created
    1                response.in_progress       with the first token
    12 t + k         the k-th that the answer's t-th token brings, mostly one response.output_text.delta;
                     where an item begins also response.output_item.added, response.content_part.added,
                     and where one ends …_text.done, response.content_part.done, response.output_item.done
    12 (T + 1) + k   those that the end brings; T: all tokens
    12 (T + 1) + 11  response.completed, response.incomplete or response.failed

A number follows from the position in the job's token stream alone, so ``starting_after`` needs no memory:
whoever comes back is given the answer read anew, without what they have. Numbers grow, with gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headway.gateway.response_item_events import ItemEvents, Made
from headway.gateway.response_objects import ResponseForm
from headway.gateway.sse import frame
from headway.queueing.events import EndEvent, EndReason, JobResult, TokenEvent

STRIDE: Final = 12
"""More than a token can bring: thoughts begun, worded and ended, a message begun and worded are nine."""

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


def last_number(tokens: int) -> int:
    """The number of the last event of an answer with so many tokens."""
    return STRIDE * (tokens + 2) - 1


class ResponseEvents:
    """Turns one job's events, from the first on, into those of the response that its reader does not have."""

    def __init__(self, form: ResponseForm, after: int | None = None) -> None:
        """``after``: the number of the last one that the reader has."""
        self._form = form
        self._after = -1 if after is None else after
        self._items = ItemEvents(form.job_id, form.answer_form)
        self._is_in_progress = False

    def begin(self) -> list[ResponseEvent]:
        """The event of the acceptance."""
        return self._wanted(0, [("response.created", {"response": self._form.begun("queued")})])

    def tokens(self, event: TokenEvent) -> list[ResponseEvent]:
        """What new tokens bring."""
        made = self._items.text(event.text, event.logprobs)
        return self._in_progress() + self._wanted(STRIDE * event.cursor.tokens, made)

    def end(self, event: EndEvent, result: JobResult, ended_unix: int) -> list[ResponseEvent]:
        """What the job's end brings; ``ended_unix``: when that was, as its record says."""
        made = self._items.end(event.choices[0].tail if event.choices else "", result)
        kind = _LAST.get(event.reason, "response.failed")
        last: Made = (kind, {"response": self._form.ended(result, ended_unix)})
        return [
            *(self._in_progress() if made else []),
            *self._wanted(STRIDE * (event.cursor.tokens + 1), made),
            *self._wanted(last_number(event.cursor.tokens), [last]),
        ]

    def _in_progress(self) -> list[ResponseEvent]:
        """What comes before the first text."""
        if self._is_in_progress:
            return []
        self._is_in_progress = True
        return self._wanted(1, [("response.in_progress", {"response": self._form.begun("in_progress")})])

    def _wanted(self, first: int, made: Sequence[Made]) -> list[ResponseEvent]:
        """Those that the reader does not have, numbered from ``first``."""
        numbered = [ResponseEvent(first + k, kind, body) for k, (kind, body) in enumerate(made)]
        return [event for event in numbered if event.number > self._after]
