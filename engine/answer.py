"""What the runner remembers of one request between steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from headway.engine.drafts import drafts_of, right_tokens
from headway.engine.errors import UnsupportedError
from headway.engine.grammar_state import GrammarState
from headway.engine.grammars import Grammars
from headway.engine.token_history import TokenHistory
from headway.engine.values import Admitted, Chunk, RequestKey, Sampled, Sampling
from headway.kernels.host_arrays import as_float64
from headway.kernels.philox import uniforms

DRAWS_AHEAD = 64
"""Uniforms computed at once: one vectorised call costs about as much as one draw."""


class Answer:
    """Sampling parameters, draws and token counts of one request; all follow from the plan alone."""

    __slots__ = (
        "_block_table",
        "_draws",
        "_draws_start",
        "_kept",
        "_kept_start",
        "_native_block_table",
        "_native_table",
        "_native_table_address",
        "_prompt_tokens",
        "_table",
        "grammar",
        "history",
        "is_plain",
        "key",
        "sampling",
    )

    def __init__(self, admitted: Admitted, grammars: Grammars | None = None) -> None:
        self.key: RequestKey = admitted.key
        self.sampling: Sampling = admitted.sampling
        self.grammar = grammar_of(admitted, grammars)
        self.history: TokenHistory | None = None
        if has_penalties(admitted.sampling):
            self.history = TokenHistory(admitted.prompt_token_ids, admitted.generated_token_ids)
        self.is_plain = self.history is None and self.grammar is None and takes_largest(admitted.sampling)
        """Whether each of its tokens is the one with the largest logit, and nothing else is asked for."""
        self._prompt_tokens = len(admitted.prompt_token_ids)
        self._block_table: tuple[int, ...] = ()
        self._table: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._native_block_table: tuple[int, ...] = ()
        self._native_table: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._native_table_address = 0
        self._kept: tuple[int, ...] = ()
        self._kept_start = 0
        self._draws: NDArray[np.float64] = np.empty(0)
        self._draws_start = 0

    def table(self, block_table: tuple[int, ...]) -> NDArray[np.int64]:
        """The block table as an array, converted only when it grew."""
        if block_table is not self._block_table:
            self._block_table = block_table
            self._table = np.array(block_table, dtype=np.int64)
        return self._table

    def table_address(self, block_table: tuple[int, ...]) -> int:
        """Where the block table lies as int32, for native code; valid until the table grows."""
        if block_table is not self._native_block_table:
            self._native_block_table = block_table
            self._native_table = np.array(block_table, dtype=np.int32)
            self._native_table_address = self._native_table.ctypes.data
        return self._native_table_address

    def index_after(self, chunk: Chunk) -> int:
        """Position in the answer (0-based) of the token behind the last known one, before any guess."""
        return chunk.start + len(chunk.token_ids) - chunk.draft_tokens - self._prompt_tokens

    def learn(self, chunk: Chunk) -> None:
        """Count the answer's tokens that were not yet: right guesses of the last step, then the chunk's.

        Its own guesses are not counted: the step may come again.
        """
        if self.grammar is not None:
            if self._kept:
                self.grammar.tell(self._kept_start - self._prompt_tokens, self._kept)
            tokens = chunk.token_ids[: len(chunk.token_ids) - chunk.draft_tokens]
            self.grammar.tell(chunk.start - self._prompt_tokens, tokens)
        if self.history is None:
            return
        known = self.history.known_tokens
        if known < chunk.start:
            self.history.append(self._kept[known - self._kept_start : chunk.start - self._kept_start])
        fresh = max(0, known - chunk.start)
        self.history.append(chunk.token_ids[fresh : len(chunk.token_ids) - chunk.draft_tokens])

    def keep(self, chunk: Chunk, right: int) -> None:
        """So many of the chunk's guesses are right: the next chunk starts behind them."""
        self._kept_start = chunk.start + len(chunk.token_ids) - chunk.draft_tokens
        self._kept = drafts_of(chunk)[:right]

    def uniform(self, index: int) -> float:
        """The draw in [0, 1) for the token at ``index`` of the answer, by seed and index alone."""
        ahead = index - self._draws_start
        if not 0 <= ahead < len(self._draws):
            positions = torch.arange(index, index + DRAWS_AHEAD)
            seeds = torch.full_like(positions, signed_64(self.sampling.seed))
            self._draws, self._draws_start, ahead = as_float64(uniforms(seeds, positions)), index, 0
        return float(self._draws[ahead])


def keep_right(
    chunks: Sequence[Chunk], answers: Sequence[Answer], sampled: Sequence[Sampled]
) -> tuple[Sampled, ...]:
    """What counts of what the rows of all chunks chose; each answer remembers its right guesses."""
    kept: list[Sampled] = []
    sampling = [(chunk, answer) for chunk, answer in zip(chunks, answers, strict=True) if chunk.samples]
    for (chunk, answer), entries in zip(sampling, right_tokens(chunks, sampled), strict=True):
        if chunk.draft_tokens:
            answer.keep(chunk, len(entries) - 1)
        kept += entries
    return tuple(kept)


def grammar_of(admitted: Admitted, grammars: Grammars | None) -> GrammarState | None:
    """Where an announced answer is in its grammar; None: it has none. GrammarError, UnsupportedError."""
    source = admitted.sampling.grammar
    if source is None:
        return None
    if grammars is None:
        raise UnsupportedError("this runner cannot hold an answer to a form")
    return grammars.start(source, admitted.generated_token_ids)


def has_penalties(sampling: Sampling) -> bool:
    """Whether any penalty changes logits."""
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    return penalties != (1.0, 0.0, 0.0)


def takes_largest(sampling: Sampling) -> bool:
    """Whether the largest logit decides at every place, if neither penalties nor a grammar change it."""
    return (
        sampling.is_greedy
        and sampling.logprobs is None
        and not sampling.logit_bias
        and sampling.min_tokens == 0
    )


def signed_64(seed: int) -> int:
    """The seed's low 64 bits as a signed integer, which is what an int64 tensor can hold."""
    return ((seed + 2**63) % 2**64) - 2**63
