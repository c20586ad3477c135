"""What ``--deterministic`` adds: a refusal where the promise cannot be kept, rows sampled one by one, a mark.

The promise: a request's tokens and log-probabilities are the same bits alone, in any batch, in any chunks,
preempted, swapped or resumed. The native CPU kernels keep it by construction, whatever the number of threads:
each sum has one order, given by its own row and by absolute positions. What remains is sampling, where torch
divides long sums among threads and vectors by the shape of the batch. On a GPU the order of sums is fixed
where the runner is loaded (``fused_loading``); here is its mark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from headway.engine.cpu_kernels import Computation
from headway.engine.errors import ModelError
from headway.engine.interfaces import Runner
from headway.engine.sampler import Sampler, SamplingRow
from headway.engine.values import Admitted, Chunk, RequestKey, Sampled, Sampling, StepPlan

MARK_SAMPLING = Sampling(temperature=1.0, top_p=0.95, seed=1, logprobs=8)
"""Draws, truncation and log-probabilities are all in the mark."""
MARK_TOKENS = 96
"""More than one of the kernels' tiles of 64 keys."""


def check_deterministic(chosen: Computation, device: torch.device) -> None:
    """ModelError where a batch's size decides in which order sums run."""
    if device.type != "cpu":
        raise ModelError(
            f"--deterministic on {device.type} needs the GPU's own kernels, which Triton compiles, and it is "
            "not installed: torch's products choose the order of their sums by the size of the batch; "
            "install Triton, take --device cpu, or leave --deterministic out"
        )
    if chosen.library is None:
        raise ModelError(
            "--deterministic needs the native CPU kernels, since torch's products choose the order of their "
            f"sums by the size of the batch, and they cannot run: {chosen.reason}"
        )


class RowByRowSampler(Sampler):
    """A ``Sampler`` whose rows share nothing: each in memory of its own, from its first op to its last on one
    of as many threads as torch has."""

    def __init__(self, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        super().__init__(vocab_size, eos_token_ids)
        self._threads = ThreadPoolExecutor(
            torch.get_num_threads(),
            thread_name_prefix="sampler",
            # Of the thread itself: its ops are not divided any further.
            initializer=partial(torch.set_num_threads, 1),
        )

    def sample(
        self, logits: Tensor, rows: Sequence[SamplingRow], *, are_masked: bool = False
    ) -> tuple[Sampled, ...]:
        """As ``Sampler.sample``, with the same bits in every batch."""
        return tuple(self._threads.map(partial(self._alone, are_masked=are_masked), logits.unbind(), rows))

    @torch.inference_mode()
    def _alone(self, logits: Tensor, row: SamplingRow, *, are_masked: bool) -> Sampled:
        # A copy: vectors begin where memory is aligned, so a row in the middle would be cut differently.
        return super().sample(logits.clone().unsqueeze(0), (row,), are_masked=are_masked)[0]


def mark_of(runner: Runner) -> str:
    """12 hex digits over what a fixed request gets: where they are equal, so are all answers.

    They change with weights, their form, dtype, kernels, compiler and CPU. Nothing stays behind.
    """
    length = min(MARK_TOKENS, runner.max_model_len - 1)
    key = RequestKey("deterministic-mark", 0)
    prompt = tuple(7919 * place % runner.vocab_size for place in range(length))
    chunk = Chunk(key, 0, prompt, tuple(range(-(-length // runner.block_size))), samples=True)
    result = runner.execute(StepPlan(0, (chunk,), (Admitted(key, prompt, (), MARK_SAMPLING),)))
    runner.execute(StepPlan(0, (), released=(key,)))
    # repr of a float is exact.
    return hashlib.sha256(repr([tuple(entry)[1:] for entry in result.sampled]).encode()).hexdigest()[:12]
