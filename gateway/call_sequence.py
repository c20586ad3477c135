"""Calls written as JSON, one or several, with or without a list around them."""

from __future__ import annotations

from headway.gateway.answer_parts import CallArgued, CallBegun, Part
from headway.gateway.json_scan import CallObject, skip_space

BETWEEN = frozenset("[],;")
"""What may stand between calls and around them, besides white space."""


class CallSequence:
    """Reads calls until something comes that is none.

    ``rejected`` is then the text of what looked like a call and is none; calls before it stand.
    """

    def __init__(self, first_call: int, names: frozenset[str] | None = None) -> None:
        self.next_call = first_call
        self.is_over = False
        self.rejected = ""
        self._names = names
        self._object: CallObject | None = None
        self._raw: list[str] = []
        self._has_begun = False

    @property
    def has_begun(self) -> bool:
        """Whether a call has been told already."""
        return self._has_begun

    @property
    def is_between(self) -> bool:
        """Whether no call is half read."""
        return self._object is None

    def feed(self, text: str, start: int) -> tuple[int, list[Part]]:
        """Read on from ``start``; returns the first position that belongs to no call, and what was found."""
        parts: list[Part] = []
        at = start
        while at < len(text) and not self.is_over:
            if self._object is None:
                at = self._between(text, at)
            else:
                at = self._inside(self._object, text, at, parts)
        return at, parts

    def unfinished(self) -> str:
        """At the end of the text: what was held back of a call whose name never came."""
        return "" if self._object is None or self._object.name is not None else "".join(self._raw)

    def _between(self, text: str, at: int) -> int:
        at = skip_space(text, at)
        if at < len(text):
            if text[at] == "{":
                self._object, self._raw = CallObject(self._names), []
            elif text[at] in BETWEEN:
                at += 1
            else:
                self.is_over = True
        return at

    def _inside(self, call: CallObject, text: str, at: int, parts: list[Part]) -> int:
        was_named = call.name is not None
        end = call.feed(text, at)
        self._raw.append(text[at:end])
        if (
            call.name is not None
        ):  # what was told as a call stays one, also if it goes bad right behind its name
            if not was_named:
                self._has_begun = True
                parts.append(CallBegun(self.next_call, call.name))
            if arguments := call.take_arguments():
                parts.append(CallArgued(self.next_call, arguments))
        if call.is_bad:
            self.is_over = True
            self.rejected = "" if call.name is not None else "".join(self._raw)
            self.next_call += call.name is not None
            self._object = None
        elif call.is_done:
            self.next_call += 1
            self._object = None
        return end
