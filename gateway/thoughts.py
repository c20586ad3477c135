"""Thoughts that an answer begins with, told apart from what it then says."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from headway.gateway.answer_parts import Thought
from headway.gateway.held_text import HeldText


class _At(Enum):
    START = auto()
    THOUGHTS = auto()
    SPACE = auto()
    WORDS = auto()


class Thoughts:
    """Splits ``<think>…</think>`` off the front; only there, so that words about the marks stay words.

    The space around the thoughts is nobody's. Thoughts that never end are all there is.
    """

    def __init__(self, marks: Mapping[str, str]) -> None:
        self._marks = marks
        self._at = _At.START
        self._held = ""
        self._thoughts = HeldText(())
        self._has_thought = False

    def feed(self, text: str) -> tuple[list[Thought], str]:
        """The thoughts in this text, and the words that follow them."""
        found: list[Thought] = []
        if self._at is _At.START:
            text = self._start(text)
        if self._at is _At.THOUGHTS:
            text = self._think(text, found)
        if self._at is _At.SPACE and (text := text.lstrip()):
            self._at = _At.WORDS
        return found, text

    def rest(self) -> tuple[list[Thought], str]:
        """The text has ended: what was held back because it could have become a mark."""
        if self._at is _At.START:
            return [], self._held
        held = self._thoughts.rest().rstrip() if self._at is _At.THOUGHTS else ""
        return [Thought(held)] if held else [], ""

    def _start(self, text: str) -> str:
        self._held += text
        begun = self._held.lstrip()
        for opening, closing in self._marks.items():
            if begun.startswith(opening):
                self._at = _At.THOUGHTS
                self._thoughts = HeldText((closing,))
                self._held = ""
                return begun[len(opening) :]
        if any(opening.startswith(begun) for opening in self._marks):
            return ""
        self._at = _At.WORDS
        return self._held

    def _think(self, text: str, thoughts: list[Thought]) -> str:
        if not self._has_thought:
            text = text.lstrip()
        found = self._thoughts.feed(text)
        if found.words:
            self._has_thought = True
            thoughts.append(Thought(found.words))
        if found.marker is not None:
            self._at = _At.SPACE
        return found.rest
