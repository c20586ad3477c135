"""How often a guess is right, by how many tokens before it matched: learned for a request, and for all.

    rate = (right + weight · rate of all) / (tried + weight)          recent trials count more

A guess need not be computed to be judged: the token that came instead says it as well. So what is not worth
guessing now is still learned, and nothing has to be tried for the sake of learning.
"""

from __future__ import annotations

from typing import Final

LENGTHS: Final = 6
"""Classes of matches: of 2, 3, 4 to 7, 8 to 15, 16 to 31, 32 tokens and more."""
FIRST_RATES: Final = (0.2, 0.3, 0.5, 0.7, 0.8, 0.85)
"""Before anything is known: about what chats and summaries were seen to give."""
PRIOR_TRIALS: Final = 4.0
KEPT_OF_REQUEST: Final = 0.9
"""Of a request's counts, at each trial in the same class: a copied passage begins and ends within tens."""
KEPT_OF_ALL: Final = 0.995


def class_of(matched: int) -> int:
    """The class of a match by its length."""
    return max(0, matched - 2) if matched < 4 else min(LENGTHS - 1, matched.bit_length() - 1)


class Acceptance:
    """Counts of one request, over those of ``everyone``; for everyone itself that is None."""

    __slots__ = ("_everyone", "_kept", "_right", "_tried")

    def __init__(self, everyone: Acceptance | None = None) -> None:
        self._everyone = everyone
        self._kept = KEPT_OF_ALL if everyone is None else KEPT_OF_REQUEST
        self._right = [0.0] * LENGTHS
        self._tried = [0.0] * LENGTHS

    def rate(self, matched: int) -> float:
        """The share of guesses behind so many matching tokens that are right."""
        return self._rate(class_of(matched))

    def observe(self, matched: int, *, is_right: bool) -> None:
        """A guess behind so many matching tokens was right, or not."""
        length = class_of(matched)
        self._tried[length] = self._kept * self._tried[length] + 1.0
        self._right[length] = self._kept * self._right[length] + is_right
        if self._everyone is not None:
            self._everyone.observe(matched, is_right=is_right)

    def _rate(self, length: int) -> float:
        prior = FIRST_RATES[length] if self._everyone is None else self._everyone._rate(length)
        return (self._right[length] + PRIOR_TRIALS * prior) / (self._tried[length] + PRIOR_TRIALS)
