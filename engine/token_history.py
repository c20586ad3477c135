"""What one request has said so far, counted for penalties without ever recounting."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class TokenHistory:
    """Distinct tokens of prompt and answer, with how often each occurs in the answer."""

    __slots__ = ("_counts", "_slots", "_tokens", "known_tokens")

    def __init__(self, prompt: Iterable[int], answer: Iterable[int]) -> None:
        self.known_tokens = 0
        """Tokens counted: prompt and answer."""
        self._slots: dict[int, int] = {}
        self._tokens = np.zeros(64, dtype=np.int64)
        self._counts = np.zeros(64, dtype=np.float32)
        for token in prompt:
            self._slot(token)
            self.known_tokens += 1
        self.append(answer)

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Distinct tokens, in order of first use."""
        return self._tokens[: len(self._slots)]

    @property
    def answer_counts(self) -> NDArray[np.float32]:
        """Occurrences of ``tokens`` in the answer; 0 for those of the prompt only."""
        return self._counts[: len(self._slots)]

    def append(self, answer: Iterable[int]) -> None:
        """Count more tokens of the answer."""
        for token in answer:
            slot = self._slot(token)  # first: it may replace the arrays by longer ones
            self._counts[slot] += 1
            self.known_tokens += 1

    def followed_by(self, answer: Iterable[int]) -> TokenHistory:
        """Another history: this one, and more tokens of the answer."""
        longer = TokenHistory((), ())
        longer.known_tokens = self.known_tokens
        longer._slots = dict(self._slots)
        longer._tokens, longer._counts = self._tokens.copy(), self._counts.copy()
        longer.append(answer)
        return longer

    def _slot(self, token: int) -> int:
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.zeros_like(self._tokens)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._tokens[slot] = token
        return slot
