"""What a form of weights, keys and values costs: log-likelihoods of a text, beside another form's.

The text is the end of Newton's *Opticks* (Queries 28 to 31; 4th edition, 1730, in the public domain; e-book
33504 of Project Gutenberg, as it lies among the tests of libbacktrace), its lines joined to paragraphs and
the marks of italics left out. It was chosen before anything was measured on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import torch
from torch import Tensor

from headway.engine.interfaces import Tokenizer
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling, StepPlan

TEXT_FILE: Final = Path(__file__).resolve().with_name("opticks.txt")
WINDOW: Final = 512
"""Tokens that are read together; none sees what stands before its window."""
_GREEDY: Final = Sampling(temperature=0.0)


class ScoringRunner(Protocol):
    """A runner that tells the logits of every token."""

    @property
    def block_size(self) -> int:
        """Tokens per KV block."""
        ...

    def logits(self, plan: StepPlan) -> Tensor:
        """[new tokens, vocab]."""
        ...


@dataclass(frozen=True, slots=True)
class Cost:
    """A perplexity against another one, both of the same tokens."""

    change: float
    """Their ratio minus 1; 0.01: one hundredth more."""
    error: float
    """One standard error of the change: another text of the same kind would give something as far off."""
    tokens: int

    def __str__(self) -> str:
        return f"{self.change:+.2%} ± {self.error:.2%} over {self.tokens:,} tokens"


def text_tokens(tokenizer: Tokenizer, limit: int | None = None) -> tuple[int, ...]:
    """The text, or its first ``limit`` tokens."""
    text = TEXT_FILE.read_text(encoding="utf-8")
    # No tokenizer makes fewer than one token of 16 characters of English.
    return tokenizer.encode(text[: None if limit is None else 16 * limit], add_special_tokens=False)[:limit]


@torch.inference_mode()
def log_likelihoods(runner: ScoringRunner, tokens: Sequence[int], window: int = WINDOW) -> Tensor:
    """Of each token but the first of each window, float64, in the text's order.

    The native kernels write the keys and values of all new tokens to their blocks before any query reads them
    there, those of its own chunk too: a window in one chunk costs what a cache in 8 bits costs in service.
    """
    parts = [tokens[start : start + window] for start in range(0, len(tokens), window)]
    return torch.cat(list(_scored(runner, parts)))


def cost_of(scores: Tensor, reference: Tensor) -> Cost:
    """What ``scores`` cost against ``reference``, both from ``log_likelihoods`` of the same tokens."""
    losses = reference - scores
    return Cost(
        math.expm1(float(losses.mean())), float(losses.std()) / math.sqrt(len(losses)), tokens=len(losses)
    )


def _scored(runner: ScoringRunner, parts: Sequence[Sequence[int]]) -> Iterator[Tensor]:
    for index, part in enumerate(parts):
        # All in the same blocks: one window's are read no more when the next one comes.
        blocks = tuple(range(-(-len(part) // runner.block_size)))
        key, tokens = RequestKey(f"window-{index}", 0), tuple(part)
        chunk = Chunk(key, start=0, token_ids=tokens, block_table=blocks, samples=True)
        released = (RequestKey(f"window-{index - 1}", 0),) if index else ()
        plan = StepPlan(index, (chunk,), (Admitted(key, tokens, (), _GREEDY),), released=released)
        logits = runner.logits(plan)[:-1]
        chosen = logits.gather(1, torch.tensor(tokens[1:]).unsqueeze(1)).squeeze(1)
        yield (chosen - logits.logsumexp(dim=1)).double()
