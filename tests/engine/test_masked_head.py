"""Masks in the native head: for whatever bits, what torch finds in logits that were masked afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.engine.test_native_model import WIDE, load
from tests.engine.test_torch_runner import RandomCheckpoint
from tests.native_kernels import CACHE_DIR, native_library
from torch import Tensor

from headway.engine.answer import Answer
from headway.engine.cpu_kernels import CpuSettings
from headway.engine.native_model import NativeModel
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling, StepPlan

VOCAB = 717
"""Three shares of the head's columns; the last 16 lanes and the last word of a mask are not full."""
WORDS = -(-VOCAB // 32)
CONFIG = replace(WIDE, vocab_size=VOCAB)
KEY = RequestKey("r", 0)
PROMPT = tuple(range(40, 56))
FINAL_NORMS = {"ties": 0.0, "nan": float("nan")}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: on shared cores, more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Head:
    """Logits of the prompt's tokens, with and without masks."""

    def __init__(self, runner: TorchRunner) -> None:
        self._chunk = Chunk(KEY, 0, PROMPT, (0, 1, 2, 3), samples=True)
        admitted = Admitted(KEY, PROMPT, (), Sampling())
        self.plain = runner.logits(StepPlan(0, (self._chunk,), (admitted,)))
        self._answer: Answer = runner._answer(self._chunk)
        assert isinstance(runner._model, NativeModel)
        self._model = runner._model

    def choose(
        self, rows: Sequence[int], masks: Sequence[NDArray[np.uint32] | None], kept: int
    ) -> tuple[list[int], Tensor]:
        addresses = [0 if mask is None else int(mask.ctypes.data) for mask in masks]
        chosen, logits = self._model.forward([self._chunk], [self._answer], rows, kept, addresses)
        return chosen, logits


@cache
def head(kind: str) -> Head:
    if kind == "int8":
        return Head(load(CONFIG, "int8"))
    if kind in FINAL_NORMS:
        return Head(alike(FINAL_NORMS[kind]))
    return Head(load(CONFIG, dtype=kind))


class AlikeCheckpoint(RandomCheckpoint):
    """All logits are 0, or no numbers."""

    def __init__(self, final_norm: float) -> None:
        super().__init__(CONFIG)
        self._final_norm = final_norm

    def tensor(self, name: str) -> Tensor:
        weight = super().tensor(name)
        return torch.full_like(weight, self._final_norm) if name == "model.norm.weight" else weight


def alike(final_norm: float) -> TorchRunner:
    native_library()
    cpu = CpuSettings("native", "none", CACHE_DIR)
    checkpoint = AlikeCheckpoint(final_norm)
    return TorchRunner.load(checkpoint, dtype="bfloat16", kv_cache_bytes=16 << 20, cpu=cpu)


def allowing(tokens: Sequence[int]) -> NDArray[np.uint32]:
    """Only these tokens, and what no token is."""
    mask = np.zeros(WORDS, dtype=np.uint32)
    for token in (*tokens, *range(VOCAB, 32 * WORDS)):
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask


ANY = st.lists(st.integers(0, 2**32 - 1), min_size=WORDS, max_size=WORDS)
TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6)
ALL_BUT = TOKENS.map(lambda tokens: ~allowing(tokens))
MASKS = st.one_of(
    st.none(),
    TOKENS.map(allowing),
    ANY.map(lambda words: np.array(words, dtype=np.uint32) | allowing([7])),
    ALL_BUT,
)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["bfloat16", "float32", "int8", "ties"]),
    masks=st.lists(MASKS, min_size=1, max_size=len(PROMPT)),
    kept=st.integers(0, len(PROMPT)),
    data=st.data(),
)
def test_what_a_row_chooses_is_the_first_of_the_largest_that_it_may(
    kind: str, masks: list[NDArray[np.uint32] | None], kept: int, data: st.DataObject
) -> None:
    rows = data.draw(st.permutations(range(len(PROMPT))))[: len(masks)]
    kept = min(kept, len(masks))
    chosen, logits = head(kind).choose(rows, masks, kept)
    wanted = head(kind).plain[rows]
    for row, mask in zip(wanted, masks, strict=True):
        if mask is not None:
            bits = np.unpackbits(mask.view(np.uint8), count=VOCAB, bitorder="little")
            row.masked_fill_(torch.from_numpy(bits == 0), -torch.inf)
    assert chosen == wanted.argmax(dim=-1).tolist()
    assert torch.equal(logits, wanted[:kept])


def test_a_mask_holds_though_nothing_that_it_allows_is_a_number() -> None:
    chosen, _ = head("nan").choose(range(3), [allowing([700, 300]), allowing([716]), None], 0)
    assert chosen == [300, 716, 0]
