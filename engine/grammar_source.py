"""From the form that an answer must have to the grammar library's own notation, and what it says of it.

No model is needed here, so whoever accepts a job can refuse one whose form nobody can hold an answer to. A
source is text: it can be sent, stored, compared and hashed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, cast

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark
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

FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
"""What the library holds a string to. Any other ``format`` is an annotation, as the draft has it."""

_OF_SCHEMAS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
"""Keywords whose members are named by the user: a property called ``format`` is none."""
_OF_VALUES: Final = frozenset({"enum", "const", "default", "examples"})

MOST_ERROR_CHARS: Final = 300
BYTES_END: Final = 256
"""The end token of the vocabulary of single bytes."""


def json_schema_source(schema: dict[str, Any] | bool) -> str:
    """JSON that a schema (draft 2020-12) allows; what it cannot express is told by ``refusal``, not
    ignored."""
    if schema is False:
        raise GrammarError("the schema false allows no value")
    given = {} if schema is True else cast("dict[str, Any]", _without_other_formats(schema))
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
    except (GbnfToLarkError, ValueError, LookupError, RecursionError) as error:
        raise GrammarError(f"the grammar cannot be read: {reason_of(str(error))}") from None


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
    reason = reason_of(matcher.get_error())
    return "no text at all fits it" if reason in {"", "NoExtension", "NoExtensionBias"} else reason


def reason_of(text: str) -> str:
    """The library's words in one line: its first, and the one that a regex's error has further down."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    more = next((f" {line[len('error: ') :]}" for line in lines if line.startswith("error: ")), "")
    return lines[0][:MOST_ERROR_CHARS] + more[:MOST_ERROR_CHARS]


def _without_other_formats(schema: object) -> object:
    if isinstance(schema, list):
        return [_without_other_formats(part) for part in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, object] = {}
    for name, value in cast("dict[str, object]", schema).items():
        if name in _OF_VALUES or name.startswith("x-"):
            kept[name] = value
        elif name in _OF_SCHEMAS and isinstance(value, dict):
            named = cast("dict[str, object]", value)
            kept[name] = {key: _without_other_formats(part) for key, part in named.items()}
        elif name != "format" or value in FORMATS:
            kept[name] = _without_other_formats(value)
    return kept


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
