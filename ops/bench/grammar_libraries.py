"""Two libraries that hold answers to a JSON Schema, with the demo model's tokens: what each lets through.

    pip install xgrammar
    .venv/bin/python ops/bench/grammar_libraries.py [--model smollm2-135m] [--walks 8]

For each of the schemas of ``grammar_cases.json``: texts that fit and texts that do not are read token by
token in three layouts, and random walks through the masks are judged by ``jsonschema`` where they end. Times
are those of one compilation and of one mask. llguidance is used as the engine does (``engine/grammars.py``).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import jsonschema
import numpy as np
import torch
from llguidance.numpy import fill_next_token_bitmask
from numpy.typing import NDArray

from headway.engine.checkpoint import open_checkpoint
from headway.engine.errors import GrammarError
from headway.engine.grammar_source import json_schema_source
from headway.engine.grammar_state import GrammarState
from headway.engine.grammars import Grammars
from headway.engine.interfaces import Tokenizer
from headway.engine.model_source import resolve_model

CASES: Final = Path(__file__).with_name("grammar_cases.json")
MOST_TOKENS: Final = 600
CLOSING: Final = frozenset({b'"', b"}", b"]", b'"}', b'",'})
CLOSING_SHARE: Final = 0.35
"""Of a walk's steps end what is open, if they can: evenly drawn tokens hardly ever do."""
XGRAMMAR_BLANKS: Final = 8
LAYOUTS: Final[tuple[dict[str, Any], ...]] = ({}, {"separators": (",", ":")}, {"indent": 2})


class Walk(Protocol):
    """One answer in the making."""

    def fill(self, bits: NDArray[np.int32]) -> None:
        """Set the bits of the tokens that may come next."""

    def take(self, token_id: int) -> bool:
        """Go on by a token; False: it is refused."""


class GuidedWalk:
    """By llguidance."""

    def __init__(self, state: GrammarState) -> None:
        self._matcher = state.matcher

    def fill(self, bits: NDArray[np.int32]) -> None:
        """As ``Walk.fill``."""
        fill_next_token_bitmask(self._matcher, bits)

    def take(self, token_id: int) -> bool:
        """As ``Walk.take``."""
        return self._matcher.consume_token(token_id)


class XGrammarWalk:
    """By xgrammar."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, bits: NDArray[np.int32]) -> None:
        """As ``Walk.fill``."""
        self._matcher.fill_next_token_bitmask(torch.from_numpy(bits), 0)

    def take(self, token_id: int) -> bool:
        """As ``Walk.take``."""
        return bool(self._matcher.accept_token(token_id))


Compile = Callable[[dict[str, Any]], Callable[[], Walk]]
"""From a schema to what begins answers; raises for one that cannot be held."""


def llguidance_library(tokenizer: Tokenizer, vocab_size: int) -> Compile:
    """As the engine compiles."""
    grammars = Grammars(lambda: tokenizer, vocab_size=vocab_size, end_token_ids=tokenizer.eos_token_ids)
    grammars.check(json_schema_source({"type": "null"}))  # the vocabulary is laid out once

    def compiled(schema: dict[str, Any]) -> Callable[[], Walk]:
        source = json_schema_source(schema)
        grammars.check(source)
        return lambda: GuidedWalk(grammars.start(source, ()))

    return compiled


def xgrammar_library(tokenizer: Tokenizer, vocab_size: int) -> Compile:
    """With blanks bounded, and properties beside those that a schema names as JSON Schema has them."""
    try:
        import xgrammar
    except ImportError:
        sys.exit("xgrammar is not installed: pip install xgrammar")
    known = xgrammar.TokenizerInfo(
        [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)],
        vocab_type=xgrammar.VocabType.RAW,
        vocab_size=vocab_size,
        stop_token_ids=sorted(tokenizer.eos_token_ids),
    )
    compiler = xgrammar.GrammarCompiler(known, max_threads=2, cache_enabled=False)

    def compiled(schema: dict[str, Any]) -> Callable[[], Walk]:
        grammar = compiler.compile_json_schema(
            json.dumps(schema), strict_mode=False, max_whitespace_cnt=XGRAMMAR_BLANKS
        )
        return lambda: XGrammarWalk(xgrammar.GrammarMatcher(grammar))

    return compiled


@dataclass
class Figures:
    """What one library did with all schemas."""

    compile_ms: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)
    walks: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)


class Trial:
    """One library on all cases."""

    def __init__(self, tokenizer: Tokenizer, walks: int) -> None:
        self._tokenizer = tokenizer
        self._bytes = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        self._bits = np.zeros((1, -(-tokenizer.vocab_size // 32)), dtype=np.int32)
        self._walks = walks
        self.figures = Figures()

    def judge(self, compiled: Compile, case: dict[str, Any]) -> None:
        """One schema: its texts, then walks."""
        started = time.perf_counter()
        try:
            begin = compiled(case["schema"])
        except (GrammarError, RuntimeError, ValueError) as error:
            self.figures.remarks.append(f"{case['name']}: refused: {str(error)[:90]}")
            return
        self.figures.compile_ms.append(1e3 * (time.perf_counter() - started))
        for kind, wanted in (("fits", True), ("does_not", False)):
            for text in _texts(case[kind]):
                if self._reads(begin(), text) != wanted:
                    self.figures.remarks.append(
                        f"{case['name']}: {'refuses' if wanted else 'ACCEPTS'} {text!r}"
                    )
        chance = random.Random(1)
        for _ in range(self._walks):
            self._go(begin(), case, chance)

    def _reads(self, walk: Walk, text: str) -> bool:
        for token_id in self._tokenizer.encode(text, add_special_tokens=False):
            self._fill(walk)
            if not (self._allows(token_id) and walk.take(token_id)):
                return False
        self._fill(walk)
        return self._may_end()

    def _go(self, walk: Walk, case: dict[str, Any], chance: random.Random) -> None:
        said = b""
        for _ in range(MOST_TOKENS):
            self._fill(walk)
            if self._may_end():
                break
            allowed = np.flatnonzero(np.unpackbits(self._bits.view(np.uint8)[0], bitorder="little"))
            closing = [int(token_id) for token_id in allowed if self._bytes[token_id] in CLOSING]
            pool = closing if closing and chance.random() < CLOSING_SHARE else allowed
            if not len(pool) or not walk.take(token_id := int(chance.choice(pool))):
                self.figures.walks["stuck"] += 1
                return
            said += self._bytes[token_id]
        else:
            self.figures.walks["too long"] += 1
            return
        try:
            checker = jsonschema.FormatChecker()
            jsonschema.validate(json.loads(said), case["schema"], format_checker=checker)
            self.figures.walks["valid"] += 1
        except (ValueError, jsonschema.ValidationError):
            self.figures.walks["invalid"] += 1
            self.figures.remarks.append(f"{case['name']}: INVALID walk {said[:70]!r}")

    def _fill(self, walk: Walk) -> None:
        started = time.perf_counter()
        walk.fill(self._bits)
        self.figures.mask_us.append(1e6 * (time.perf_counter() - started))

    def _allows(self, token_id: int) -> bool:
        return bool(int(self._bits[0, token_id // 32]) >> (token_id % 32) & 1)

    def _may_end(self) -> bool:
        return any(self._allows(token_id) for token_id in self._tokenizer.eos_token_ids)


def _texts(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        for layout in LAYOUTS:
            yield json.dumps(value, ensure_ascii=False, **layout)


def main() -> int:
    """Print what each did."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--walks", type=int, default=8)
    options = parser.parse_args()
    tokenizer = open_checkpoint(resolve_model(options.model).path).tokenizer()
    cases: list[dict[str, Any]] = json.loads(CASES.read_text(encoding="utf-8"))
    for name, library in (("llguidance", llguidance_library), ("xgrammar", xgrammar_library)):
        trial, compiled = Trial(tokenizer, options.walks), library(tokenizer, tokenizer.vocab_size)
        for case in cases:
            trial.judge(compiled, case)
        told = trial.figures
        compile_ms, mask_us = np.array(told.compile_ms), np.array(told.mask_us)
        print(f"{name}: compile {np.median(compile_ms):.2f} ms, most {compile_ms.max():.1f};", end=" ")
        print("mask P50 {:.0f} µs, P99 {:.0f}, most {:.0f}".format(*np.percentile(mask_us, (50, 99, 100))))
        print(f"  walks: {dict(told.walks)}", *told.remarks, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
