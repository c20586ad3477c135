"""The events of a response's output items, made of the answer's text in the order in which it comes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from headway.gateway.answer_form import AnswerForm
from headway.gateway.answer_parts import Part, Said, Thought
from headway.gateway.openai_logprobs import started_chars
from headway.gateway.response_items import (
    Item,
    message_item,
    output_items,
    reasoning_item,
    reasoning_part,
    shown_logprobs,
    text_part,
    with_offsets,
)
from headway.queueing.events import JobResult, TokenLogprob

Made = tuple[str, dict[str, object]]
"""Type of an event, and what it says beyond that."""


class ItemEvents:
    """Reads one answer from its beginning. The items of its events are in the end those of the response."""

    def __init__(self, job_id: str, form: AnswerForm) -> None:
        self._job_id = job_id
        self._form = form
        self._reader = form.reader()
        self._open: Item | None = None
        self._index = -1
        self._thoughts: list[str] = []
        self._fed_chars = 0
        self._token_chars = 0
        self._words_start: int | None = None
        """Where in the text the message begins, once it has."""
        self._logprobs: list[tuple[int, TokenLogprob]] = []
        """Not shown yet: of the message, or perhaps of the thoughts before it."""

    def text(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> list[Made]:
        """What new tokens bring."""
        self._logprobs += with_offsets(logprobs, self._token_chars)
        *_, self._token_chars = accumulate(
            (started_chars(each.raw) for each in logprobs), initial=self._token_chars
        )
        self._fed_chars += len(text)
        made = self._parts(self._reader.feed(text))
        if self._words_start is not None and self._logprobs:
            made.append(self._words(""))
        return made

    def end(self, tail: str, result: JobResult) -> list[Made]:
        """What is left once the answer has ended: text held back, and the ends of its items."""
        made = self.text(tail, ()) + self._parts(self._reader.close())
        items = output_items(self._form, result)
        for item in items[max(self._index, 0) :]:
            if item["type"] == "reasoning":
                made += self._end_thoughts(str(item["status"]))
            else:
                made += self._open_message() + self._end_message(item)
        return made

    def _parts(self, parts: Sequence[Part]) -> list[Made]:
        made: list[Made] = []
        for part in parts:
            match part:
                case Thought(text):
                    made += self._think(text)
                case Said(text):
                    made += self._say(text)
                case _:  # calls are not asked for here
                    pass
        return made

    def _think(self, text: str) -> list[Made]:
        made: list[Made] = []
        if self._open is None:
            made = self._begin(
                reasoning_item(self._job_id, "in_progress", "", is_open=True), reasoning_part("")
            )
        self._thoughts.append(text)
        return [*made, ("response.reasoning_text.delta", self._part() | {"delta": text})]

    def _say(self, text: str) -> list[Made]:
        self._begin_words(self._fed_chars - len(text))
        thoughts = self._end_thoughts("completed") if self._is_thinking() else []
        return [*thoughts, *self._open_message(), self._words(text)]

    def _begin_words(self, start: int) -> None:
        if self._words_start is None:
            self._words_start = start
            self._logprobs = [each for each in self._logprobs if each[0] >= start]

    def _words(self, text: str) -> Made:
        logprobs = tuple(each for _, each in self._logprobs)
        self._logprobs.clear()
        delta = self._part() | {"delta": text, "logprobs": shown_logprobs(logprobs)}
        return ("response.output_text.delta", delta)

    def _open_message(self) -> list[Made]:
        if self._open is not None:
            return []
        return self._begin(message_item(self._job_id, "in_progress", "", is_open=True), text_part(""))

    def _is_thinking(self) -> bool:
        return self._open is not None and self._open["type"] == "reasoning"

    def _begin(self, item: Item, part: Item) -> list[Made]:
        self._open = item
        self._index += 1
        return [
            ("response.output_item.added", {"output_index": self._index, "item": item}),
            ("response.content_part.added", self._part() | {"part": part}),
        ]

    def _end_thoughts(self, status: str) -> list[Made]:
        text = "".join(self._thoughts)
        item = reasoning_item(self._job_id, status, text)
        done: Made = ("response.reasoning_text.done", self._part() | {"text": text})
        return [done, *self._ended(item, reasoning_part(text))]

    def _end_message(self, item: Item) -> list[Made]:
        content: Any = item["content"]
        (part,) = content
        self._begin_words(self._fed_chars)
        rest = [self._words("")] if self._logprobs else []
        said = {"text": part["text"], "logprobs": part["logprobs"]}
        return [*rest, ("response.output_text.done", self._part() | said), *self._ended(item, part)]

    def _ended(self, item: Item, part: Item) -> list[Made]:
        made: list[Made] = [
            ("response.content_part.done", self._part() | {"part": part}),
            ("response.output_item.done", {"output_index": self._index, "item": item}),
        ]
        self._open = None
        return made

    def _part(self) -> dict[str, object]:
        """Where the open item's one part is."""
        open_item = self._open or {}
        return {"item_id": open_item.get("id"), "output_index": self._index, "content_index": 0}
