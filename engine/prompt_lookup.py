"""What may come next by what came before: the text repeats itself, as LZ77 compresses it.

    tokens   … [ matched ][ continued … ] … [ matched ][ guess … ]
                        ^ an earlier place            ^ the end, where the same tokens stand before it

(Prompt lookup decoding: Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding; LLMA, arXiv 2304.04487.)
The places of each pair of neighbours are chained, newest first; of the newest few the one with the longest
match wins. A token costs constant time to enter, and a guess constant time to make.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

MOST_INDEXED: Final = 16_384
"""Tokens of a longer request that are looked at, counted from when it is first asked: 5 ms to enter."""
MOST_PLACES: Final = 8
LONGEST_MATCH: Final = 32
"""Enough to be sure of; the way back is not walked further."""
SHORTEST_MATCH: Final = 2
NOWHERE: Final = -1


class Guess(NamedTuple):
    """Tokens that may follow, and how many tokens before them stand before the earlier place, too."""

    matched: int
    tokens: tuple[int, ...]


class PromptLookup:
    """Where the tokens of one request stand. Reads its list, which only grows."""

    __slots__ = ("_before", "_first", "_last", "_tokens")

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        self._first = max(0, len(tokens) - MOST_INDEXED)
        self._last: dict[tuple[int, int], int] = {}
        """Pair of tokens to the newest place of its second one."""
        self._before = array("q", (NOWHERE,))
        """For each place from ``_first`` on: the place before of the same pair."""

    def guess(self, length: int) -> Guess | None:
        """``length`` tokens that may follow; None: nothing like the end stands before it."""
        tokens, end = self._tokens, len(self._tokens) - 1
        self._enter(end)
        if end <= self._first:
            return None
        matched, place = self._longest(self._before[end - self._first])
        if matched < SHORTEST_MATCH:
            return None
        # What is copied may run into what is guessed: then it goes round, as in a repetition.
        copied = tokens[place + 1 : place + 1 + length]
        while len(copied) < length:
            copied += copied[: length - len(copied)]
        return Guess(matched, tuple(copied))

    def _enter(self, end: int) -> None:
        """Chain the pairs up to the one that ends at ``end``."""
        tokens, last, before = self._tokens, self._last, self._before
        for place in range(self._first + len(before), end + 1):
            pair = (tokens[place - 1], tokens[place])
            before.append(last.get(pair, NOWHERE))
            last[pair] = place

    def _longest(self, place: int) -> tuple[int, int]:
        """(length of the longest match among the newest places, the place itself)."""
        tokens, before, first = self._tokens, self._before, self._first
        end = len(tokens) - 1
        best = (0, NOWHERE)
        for _ in range(MOST_PLACES):
            if place == NOWHERE or best[0] >= LONGEST_MATCH:
                break
            matched = SHORTEST_MATCH
            while (
                matched < LONGEST_MATCH
                and place - matched >= first
                and tokens[place - matched] == tokens[end - matched]
            ):
                matched += 1
            if matched > best[0]:
                best = (matched, place)
            place = before[place - first]
        return best
