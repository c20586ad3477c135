"""Where one answer is in its grammar: by its tokens and their places alone, so a plan may come twice.

answer   [0 ........... taken)[taken ...... told)
         in the matcher       wait for whoever makes the next mask
"""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLMatcher

from headway.engine.errors import GrammarError, InvariantError
from headway.engine.grammar_source import reason_of


class GrammarState:
    """The engine's thread tells it tokens; ``advance`` is for the thread that makes masks, never at once."""

    __slots__ = ("_told_tokens", "_waiting", "end_token_ids", "is_over", "matcher")

    def __init__(self, matcher: LLMatcher, end_token_ids: frozenset[int], answer: Sequence[int]) -> None:
        self.matcher = matcher
        self.end_token_ids = end_token_ids
        self._told_tokens = 0
        self._waiting: list[int] = []
        self.is_over = False
        """An end token came: what a step that was under way asks for behind it, nobody wants."""
        self.tell(0, answer)

    def tell(self, index: int, token_ids: Sequence[int]) -> None:
        """These tokens stand from ``index`` of the answer on (below 0: in the prompt); those known already
        are the same. InvariantError: some before them were never told."""
        known = self._told_tokens - index
        if known >= len(token_ids):
            return
        if known < 0:
            raise InvariantError(
                f"token {index} of an answer of which {self._told_tokens} are known to its grammar"
            )
        fresh = token_ids[known:]
        self._waiting += fresh
        self._told_tokens += len(fresh)

    def advance(self) -> None:
        """Take in what was told. GrammarError: it does not fit, or is too much to follow."""
        for token_id in self._waiting:
            if token_id in self.end_token_ids:
                self.is_over = True
            if not self.is_over and not self.matcher.consume_token(token_id):
                raise self.error()
        self._waiting.clear()

    def error(self) -> GrammarError:
        """What went wrong with the matcher."""
        reason = reason_of(self.matcher.get_error()) or "no token fits"
        return GrammarError(f"the answer cannot be held to its form any longer: {reason}")
