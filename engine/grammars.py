"""Grammars compiled for one vocabulary, kept by content: compiled once, and copied for each answer.

Any thread may call: jobs are prepared beside the engine, which compiles what its steps will need.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from llguidance import LLExecutor, LLMatcher, LLTokenizer, TokenizerWrapper

from headway.engine.errors import GrammarError
from headway.engine.grammar_source import LIMITS, compile_error
from headway.engine.grammar_state import GrammarState
from headway.engine.interfaces import Tokenizer

KEPT_GRAMMARS: Final = 512
KEPT_BYTES: Final = 32 << 20
"""Of sources. A compiled grammar takes some ten times as much."""


class Grammars:
    """Makes the state of each constrained answer.

    ``tokenizer`` is asked for with the first grammar: to lay out 50,000 tokens takes 0.15 s, and most workers
    never see one. ``end_token_ids``: what the model ends its answers with, beside those of the tokenizer.
    ``threads``: that compute masks at once.
    """

    def __init__(
        self,
        tokenizer: Callable[[], Tokenizer],
        *,
        vocab_size: int,
        end_token_ids: frozenset[int],
        threads: int = 1,
    ) -> None:
        self._make_tokenizer = tokenizer
        self._tokenizer: LLTokenizer | None = None
        self.vocab_size = vocab_size
        self._end_token_ids = end_token_ids
        self.executor = LLExecutor(num_threads=threads)
        self._matchers: OrderedDict[str, LLMatcher] = OrderedDict()
        """As they were compiled: only ever copied."""
        self._bytes = 0
        self._lock = threading.Lock()
        """Of the kept ones. Nothing is compiled while it is held, so nobody waits for a stranger's
        grammar."""
        self._tokenizer_lock = threading.Lock()

    def check(self, source: str) -> None:
        """Compile a source; GrammarError says why no answer can be held to it. Takes seconds at most."""
        self._copy(source)

    def start(self, source: str, answer: Sequence[int]) -> GrammarState:
        """The state behind the first tokens of an answer (those of an earlier owner)."""
        return GrammarState(self._copy(source), self._end_token_ids, answer)

    def _copy(self, source: str) -> LLMatcher:
        with self._lock:
            kept = self._matchers.get(source)
            if kept is not None:
                self._matchers.move_to_end(source)
                return kept.deep_copy()
        matcher = LLMatcher(self._laid_out(), source, log_level=0, limits=LIMITS)
        reason = compile_error(matcher, self.vocab_size)
        if reason is not None:
            raise GrammarError(f"no answer can be held to this form: {reason}")
        with self._lock:
            self._keep(source, matcher)
            return matcher.deep_copy()

    def _keep(self, source: str, matcher: LLMatcher) -> None:
        if source not in self._matchers:
            self._bytes += len(source)
        self._matchers[source] = matcher
        while len(self._matchers) > 1 and (len(self._matchers) > KEPT_GRAMMARS or self._bytes > KEPT_BYTES):
            gone, _ = self._matchers.popitem(last=False)
            self._bytes -= len(gone)

    def _laid_out(self) -> LLTokenizer:
        with self._tokenizer_lock:
            if self._tokenizer is None:
                tokenizer = self._make_tokenizer()
                self._end_token_ids |= tokenizer.eos_token_ids
                vocabulary = _Vocabulary(tokenizer, self.vocab_size, self._end_token_ids)
                self._tokenizer = LLTokenizer(
                    TokenizerWrapper(vocabulary),
                    n_vocab=self.vocab_size,
                    eos_token=sorted(self._end_token_ids),
                )
            return self._tokenizer


class _Vocabulary:
    """What the library asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(end_token_ids)
        known = min(vocab_size, tokenizer.vocab_size)
        raw = [tokenizer.token_bytes(token_id) for token_id in range(known)]
        # A token without text is special: no text allows it, a grammar may name it. The mark keeps it apart
        # from the same name written out, as the library wants it.
        self.tokens = [text or b"\xff" + tokenizer.token_label(i).encode() for i, text in enumerate(raw)]
        self.tokens += [b"\xff<unused %d>" % token_id for token_id in range(known, vocab_size)]
        self.special_token_ids = [i for i in range(vocab_size) if i >= known or not raw[i]]

    def __call__(self, text: bytes) -> list[int]:
        """How the model spells a text that a grammar leaves no choice about."""
        return list(self._tokenizer.encode(text.decode("utf-8", "replace"), add_special_tokens=False))
