"""What one request brings to speculation: its text, how often guesses were right, and the latest one."""

from __future__ import annotations

from collections.abc import Sequence

from headway.engine.acceptance import Acceptance
from headway.engine.prompt_lookup import Guess, PromptLookup
from headway.engine.values import Sampled


class Drafting:
    """Guesses what a request's next tokens are, and learns from what they were."""

    __slots__ = ("_acceptance", "_guess", "_guessed_at", "_lookup", "_tokens")

    def __init__(self, tokens: list[int], everyone: Acceptance) -> None:
        self._tokens = tokens
        self._lookup = PromptLookup(tokens)
        self._acceptance = Acceptance(everyone)
        self._guess: Guess | None = None
        self._guessed_at = 0

    def guess(self, length: int) -> Guess | None:
        """``length`` tokens that may follow what is known, remembered until ``learn``."""
        self._guess, self._guessed_at = self._lookup.guess(length), len(self._tokens)
        return self._guess

    def survivals(self, guess: Guess, least: float = 0.0) -> list[float]:
        """For each guessed token, how likely it is that it and all before it are right, down to ``least``."""
        chances: list[float] = []
        chance = 1.0
        for place in range(len(guess.tokens)):
            chance *= self._acceptance.rate(guess.matched + place)
            if chance < least:
                break
            chances.append(chance)
        return chances

    def learn(self, known_tokens: int, entries: Sequence[Sampled]) -> None:
        """These tokens came behind the first ``known_tokens``: the guess at them, computed or not, is judged.

        Each token that is right makes the match of the next one longer.
        """
        guess, self._guess = self._guess, None
        if guess is None or self._guessed_at != known_tokens:
            return
        for place, (token_id, entry) in enumerate(zip(guess.tokens, entries, strict=False)):
            is_right = token_id == entry.token_id
            self._acceptance.observe(guess.matched + place, is_right=is_right)
            if not is_right:
                return
