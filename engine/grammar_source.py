"""From the form that an answer must have to the grammar library's own notation, and what it says of it.

No model is needed here, so whoever accepts a job can refuse one whose form nobody can hold an answer to. A
source is text: it can be sent, stored, compared and hashed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from headway.engine.errors import GrammarError

WHITESPACE: Final = r"[ \t]|\r?\n[ \t]{0,32}"
"""Between two tokens of JSON: nothing, one blank, or a new line and its indentation. Where any amount is
allowed a model that wants to write something else can go on with blanks up to its length limit
(vllm#38696)."""

LIMITS: Final = LLParserLimits(max_grammar_size=200_000, max_lexer_states=50_000, verbose_errors=False)
"""What a grammar may take: about two seconds to compile at most (``initial_lexer_fuel`` and the size), some
ten milliseconds for one mask, 100 MB of lexer states. Errors without the parser's state: it may be somebody's
secret."""

MOST_ERROR_CHARS: Final = 400
BYTES_END: Final = 256
"""The end token of the vocabulary of single bytes."""


def json_schema_source(schema: dict[str, Any] | bool) -> str:
    """JSON that a schema (draft 2020-12) allows; what it cannot express is told by ``refusal``, not
    ignored."""
    given = schema if isinstance(schema, dict) else json.dumps(schema)
    return LLMatcher.grammar_from_json_schema(given, defaults={"whitespace_pattern": WHITESPACE})


def regex_source(regex: str) -> str:
    """A text that the expression matches as a whole."""
    return LLMatcher.grammar_from_regex(regex)


def choice_source(texts: Sequence[str]) -> str:
    """One of these texts."""
    return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(text) for text in texts))


def grammar_source(grammar: str) -> str:
    """A context-free grammar in Lark's notation, or in EBNF as llama.cpp writes it (``root ::= …``).

    Raises GrammarError for EBNF that cannot be read.
    """
    if "::=" not in grammar:
        return LLMatcher.grammar_from_lark(grammar)
    try:
        return LLMatcher.grammar_from_lark(gbnf_to_lark(grammar))
    except (ValueError, IndexError, RecursionError) as error:
        raise GrammarError(f"the grammar cannot be read: {_first_line(str(error))}") from None


@lru_cache(maxsize=512)
def refusal(source: str) -> str | None:
    """Why no answer can be held to a source, in the library's words; None: some can. Takes seconds at most.

    A vocabulary of single bytes stands in for the model's. It has no special tokens, so what is said about
    those is left to the worker.
    """
    tokenizer = _byte_tokenizer()
    matcher = LLMatcher(tokenizer, source, log_level=0, limits=LIMITS)
    reason = compile_error(matcher, tokenizer.vocab_size)
    return None if reason is None or "special token" in reason else reason


def compile_error(matcher: LLMatcher, vocab_size: int) -> str | None:
    """Why a new matcher is of no use: the grammar is wrong or too much, or nothing may even begin."""
    if not matcher.is_error():
        # The lexer is made with the first mask, and much of what is too large is only found then.
        mask = allocate_token_bitmask(1, vocab_size)
        fill_next_token_bitmask(matcher, mask)
        if not matcher.is_error() and np.any(mask):
            return None
    reason = _first_line(matcher.get_error())
    return "no text at all fits it" if reason in {"", "NoExtension", "NoExtensionBias"} else reason


class _Bytes:
    """What the library asks of a tokenizer, for one token per byte."""

    eos_token_id = BYTES_END
    bos_token_id = None
    tokens = (*(bytes((byte,)) for byte in range(256)), b"\xff<|end|>")
    special_token_ids = (BYTES_END,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@lru_cache(maxsize=1)
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=len(_Bytes.tokens), eos_token=[BYTES_END])


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "" if not lines else lines[0][:MOST_ERROR_CHARS]
