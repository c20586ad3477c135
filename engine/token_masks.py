"""Which tokens each constrained row of a step may choose, found out while a device computes its logits.

    engine's thread   tell tokens · begin ─► forward pass ═══════════════════ wait ─► choose
    mask thread                     take tokens in, fill bits ──── done ──────┘

A mask is 32 tokens a word. The library fills them without Python's lock, on threads of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple, TypeAlias

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import (
    allocate_token_bitmask,
    fill_next_token_bitmask_par,
    fill_next_token_bitmask_par_with_draft_tokens,
)
from numpy.typing import NDArray

from headway.engine.grammar_state import GrammarState
from headway.engine.grammars import Grammars
from headway.engine.values import Sampling

WORD_BITS = 32


class MaskWish(NamedTuple):
    """The rows of one request: behind its last known token, and behind each of its guesses."""

    state: GrammarState
    sampling: Sampling
    first: int
    """Of the answer's token that the first row chooses."""
    guesses: tuple[int, ...] = ()


Row: TypeAlias = tuple[GrammarState | None, Sampling, int, tuple[int, ...]]
"""Whose it is (None: it is free), its parameters, the place in the answer, and the guesses before it."""


def wishes_of(rows: Sequence[Row]) -> list[MaskWish]:
    """What the constrained ones of a step's rows want, those of one request together."""
    wishes: list[MaskWish] = []
    for state, sampling, index, guessed in rows:
        if state is not None and guessed:
            wishes[-1] = wishes[-1]._replace(guesses=guessed)
        elif state is not None:
            wishes.append(MaskWish(state, sampling, index))
    return wishes


class Masks(NamedTuple):
    """The masks of one step, row by row in the order of the wishes."""

    bits: NDArray[np.int32]
    """[rows, words], little end first."""
    forced: dict[int, int]
    """Of rows that leave one token only, which it is."""


class StepMasks:
    """The masks of one step, to be waited for."""

    def __init__(self, future: Future[Masks], vocab_size: int) -> None:
        self._future = future
        self._vocab_size = vocab_size
        self._made: Masks | None = None
        self._address = 0

    def wait(self) -> Masks:
        """GrammarError: an answer cannot be held to its form any longer."""
        if self._made is None:
            self._made = self._future.result()
            self._address = int(self._made.bits.ctypes.data)
        return self._made

    def forced(self, place: int) -> int | None:
        """The only token that a row may choose; None: there are more."""
        return self.wait().forced.get(place)

    def forbidden(self, place: int) -> NDArray[np.bool_]:
        """[vocab] of one row: what it may not choose."""
        octets = self.wait().bits[place].view(np.uint8)
        row: NDArray[np.bool_] = np.unpackbits(octets, count=self._vocab_size, bitorder="little") == 0
        return row

    def address(self, place: int) -> int:
        """Of one row's bits, for native code; valid as long as this lives."""
        row_bytes = self.wait().bits.strides[0]
        return self._address + place * row_bytes


class MaskMaker:
    """Makes the masks of one step after another.

    ``beside``: in a thread of its own, while a device computes. Else before the forward pass: where the model
    takes every core, a thread beside it holds all of them up at each of its barriers.
    """

    def __init__(self, grammars: Grammars, *, beside: bool) -> None:
        self._beside = beside
        self._vocab_size = grammars.vocab_size
        self._executor = grammars.executor
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._under_way: Future[Masks] | None = None

    def settle(self) -> None:
        """Return when nobody works on a state any more, though a step failed before it waited for its
        masks."""
        if self._under_way is not None:
            wait((self._under_way,))
            self._under_way = None

    def begin(self, wishes: Sequence[MaskWish]) -> StepMasks:
        """Begin the masks of a step. May raise what ``wait`` does."""
        self.settle()
        if self._beside:
            self._under_way = self._thread.submit(self._make, tuple(wishes))
            return StepMasks(self._under_way, self._vocab_size)
        made: Future[Masks] = Future()
        made.set_result(self._make(tuple(wishes)))
        return StepMasks(made, self._vocab_size)

    def _make(self, wishes: Sequence[MaskWish]) -> Masks:
        rows = sum(1 + len(wish.guesses) for wish in wishes)
        masks = allocate_token_bitmask(rows, self._vocab_size)  # that allow everything
        self._fill(wishes, masks)
        row = 0
        for wish in wishes:
            if wish.state.matcher.is_error():
                raise wish.state.error()
            for place in range(1 + len(wish.guesses)):
                _hold_off_ends(masks[row], wish, wish.first + place)
                row += 1
        return Masks(masks, _forced(masks))

    def _fill(self, wishes: Sequence[MaskWish], masks: NDArray[np.int32]) -> None:
        """Rows behind a guess that does not fit stay as they are: the guess is wrong, so nobody wants
        them."""
        plain: list[tuple[LLMatcher, int]] = []
        guessed: list[tuple[LLMatcher, int, list[int]]] = []
        row = 0
        for wish in wishes:
            wish.state.advance()
            if not wish.state.is_over and wish.guesses:
                guessed.append((wish.state.matcher, row, list(wish.guesses)))
            elif not wish.state.is_over:
                plain.append((wish.state.matcher, row))
            row += 1 + len(wish.guesses)
        if plain:
            fill_next_token_bitmask_par(self._executor, plain, masks)
        if guessed:
            fill_next_token_bitmask_par_with_draft_tokens(self._executor, guessed, masks)


def _forced(masks: NDArray[np.int32]) -> dict[int, int]:
    words = masks.view(np.uint32)
    forced: dict[int, int] = {}
    for row in np.flatnonzero(np.bitwise_count(words).sum(axis=1) == 1):
        word = int(np.flatnonzero(words[row])[0])
        forced[int(row)] = WORD_BITS * word + int(words[row, word]).bit_length() - 1
    return forced


def _hold_off_ends(mask: NDArray[np.int32], wish: MaskWish, index: int) -> None:
    """No end before ``min_tokens``, nor at all with ``ignore_eos``, unless the form leaves nothing else."""
    sampling, ends = wish.sampling, wish.state.end_token_ids
    is_early = index < sampling.min_tokens
    if not (is_early or sampling.ignore_eos):
        return
    if is_early:
        ends |= sampling.stop_token_ids
    allowed = [
        token_id for token_id in ends if int(mask[token_id // WORD_BITS]) >> (token_id % WORD_BITS) & 1
    ]
    if not allowed:
        return
    without = mask.copy().view(np.uint32)
    for token_id in allowed:
        without[token_id // WORD_BITS] &= ~np.uint32(1 << (token_id % WORD_BITS))
    if np.any(without):
        mask[:] = without.view(np.int32)
