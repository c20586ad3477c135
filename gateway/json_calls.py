"""Calls written as JSON behind a marker."""

from __future__ import annotations

from headway.gateway.answer_parts import Part, Said
from headway.gateway.call_sequence import CallSequence


class JsonCalls:
    """One call or a list of them, up to an optional closing mark.

    ``lead`` is the marker and the space before it: if no call follows, they are words like any others.
    """

    def __init__(
        self, first_call: int, lead: str, closing: str = "", names: frozenset[str] | None = None
    ) -> None:
        self.is_over = False
        self._lead = lead
        self._closing = closing
        self._calls = CallSequence(first_call, names)
        self._seen = ""
        self._held = ""

    @property
    def next_call(self) -> int:
        """The number of the next call of the answer."""
        return self._calls.next_call

    def feed(self, text: str) -> tuple[list[Part], str]:
        """The parts in this text, and what it leaves once the calls are over."""
        text, self._held = self._held + text, ""
        at, parts = self._calls.feed(text, 0)
        if not self._calls.has_begun:
            self._seen += text[:at]
        if not self._calls.is_over:
            return parts, ""
        rest = text[at:]
        if not self._calls.has_begun:
            self.is_over = True
            return [Said(self._lead + self._seen)], rest
        if not self._calls.rejected and self._closing.startswith(rest[: len(self._closing)]):
            if len(rest) < len(self._closing):
                self._held = rest
                return parts, ""
            rest = rest[len(self._closing) :]
        self.is_over = True
        return parts, self._calls.rejected + rest

    def close(self) -> list[Part]:
        """The text has ended: what was held back of a call that never got its name."""
        if not self._calls.has_begun:
            return [Said(self._lead + self._seen)]
        unfinished = self._calls.unfinished()
        return [Said(unfinished)] if unfinished else []
