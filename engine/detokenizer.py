"""Ids to text as they come: never half a character, never a part of what may become a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class StopMatcher:
    """How much of one stop string the text seen so far ends with (Knuth–Morris–Pratt).

    Each character costs constant time on average however often the string nearly matches.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._fallback = _border_lengths(pattern)
        self.matched = 0
        """Length of the longest beginning of the string that the text ends with."""

    def push(self, character: str) -> bool:
        """Take one more character; whether the string is complete with it."""
        while self.matched and self._pattern[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        if self._pattern[self.matched] == character:
            self.matched += 1
        return self.matched == len(self._pattern)


class Detokenizer:
    """The text of one answer.

    Shown is the longest beginning of the text that no later token can change or stop. The stop string whose
    last character comes first wins (the longest, if several end there); neither it nor anything after it is
    shown. Bytes that do not decode show U+FFFD as ``bytes.decode("utf-8", "replace")`` does.
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], stop_strings: Sequence[str] = (), exempt_tokens: int = 0
    ) -> None:
        self._token_bytes = token_bytes
        self._undecoded = b""
        """The beginning of a character whose end has not come."""
        self._matchers = [StopMatcher(pattern) for pattern in stop_strings]
        self._exempt_tokens = exempt_tokens
        """So many tokens from the start take no part in stop strings (``min_tokens``)."""
        self._held = ""
        self.is_stopped = False
        """Whether a stop string is complete; then nothing more is shown."""

    def push(self, token_id: int) -> str:
        """The text that may be shown now that this token is known."""
        if self.is_stopped:
            return ""
        text = self._decode(self._token_bytes(token_id))
        if self._exempt_tokens > 0:
            self._exempt_tokens -= 1
            return text
        return self._screen(text) if self._matchers else text

    def finish(self) -> str:
        """What the end releases: held back text, and U+FFFD for half a character."""
        if self.is_stopped:
            return ""
        shown = self._screen(self._decode(b"", is_final=True))
        released, self._held = self._held, ""
        return shown + released

    def _decode(self, raw: bytes, *, is_final: bool = False) -> str:
        text, used = codecs.utf_8_decode(self._undecoded + raw, "replace", is_final)
        self._undecoded = (self._undecoded + raw)[used:]
        return text

    def _screen(self, text: str) -> str:
        """Let through what cannot belong to a stop string any more; keep the rest in ``_held``."""
        seen = self._held + text
        for place, character in enumerate(text, start=len(self._held) + 1):
            # All matchers take each character, so the list is built before it is searched.
            complete = [matcher.matched for matcher in self._matchers if matcher.push(character)]
            if complete:
                self.is_stopped = True
                self._held = ""
                return seen[: place - max(complete)]
        held = max((matcher.matched for matcher in self._matchers), default=0)
        self._held = seen[len(seen) - held :]
        return seen[: len(seen) - held]


def _border_lengths(pattern: str) -> list[int]:
    """For each beginning of the pattern, the length of its longest proper beginning that is also its end."""
    borders = [0] * len(pattern)
    length = 0
    for place in range(1, len(pattern)):
        while length and pattern[place] != pattern[length]:
            length = borders[length - 1]
        if pattern[place] == pattern[length]:
            length += 1
        borders[place] = length
    return borders
