"""Words on their way out: what may still turn out to be the beginning of a marker waits, the rest goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Found:
    """What a piece of text let through; with ``marker``, the first marker that it completed."""

    words: str
    space: str = ""
    """White space right before the marker, which is not in ``words``."""
    marker: str | None = None
    rest: str = ""
    """What followed the marker."""


class HeldText:
    """Looks for the first of several markers, however the text is cut.

    White space at the end waits as well: in front of a marker it does not belong to the words.
    """

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = tuple(markers)
        self._held = ""

    def feed(self, text: str) -> Found:
        """What may go on now."""
        whole = self._held + text
        found = [(at, -len(marker), marker) for marker in self._markers if (at := whole.find(marker)) >= 0]
        if found:
            at, _, marker = min(found)
            words = whole[:at].rstrip()
            self._held = ""
            return Found(words, whole[len(words) : at], marker, whole[at + len(marker) :])
        words = whole[: len(whole) - self._waiting(whole)].rstrip()
        self._held = whole[len(words) :]
        return Found(words)

    def rest(self) -> str:
        """Everything held back: no more text comes."""
        rest, self._held = self._held, ""
        return rest

    def _waiting(self, whole: str) -> int:
        """How many characters at the end may begin a marker."""
        longest = max(map(len, self._markers), default=1) - 1
        for length in range(min(longest, len(whole)), 0, -1):
            if any(marker.startswith(whole[-length:]) for marker in self._markers):
                return length
        return 0
