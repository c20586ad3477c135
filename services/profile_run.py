"""An engine run in this process, for its budget: so many sequences at a time, no queue, no reader.

run      prompts and answers side by side, as a service has them
decode   every sequence's first token comes and it is held; then all go on together:

         [ prompt ][ 1 ] held … │ [ warm ][ measured: `steps` decodes of all ] cancelled
                                └ all sequences have the same context
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from headway.engine.engine import Engine
from headway.engine.values import FinishReason, Output, RequestSpec, Sampling
from headway.services.errors import ServiceError
from headway.services.profile import Budget, between, read_profile

PROMPT_TOKENS: Final = 180
ANSWER_TOKENS: Final = 94
"""As the work that peers are compared on (docs/benchmarks.md), on average."""
CONTEXT_TOKENS: Final = 225
"""About the middle of such an answer."""
DECODE_STEPS: Final = 64
WARM_STEPS: Final = 4
"""Decodes of all before those that are measured."""
LEAST_CONTEXT: Final = DECODE_STEPS // 2 + WARM_STEPS + 2
"""A prompt of one token and its first answer's, then half of the steps."""


@dataclass(frozen=True, slots=True)
class RunShape:
    """Greedy answers of full length to prompts that share nothing."""

    sequences: int
    requests: int
    prompt_tokens: int = PROMPT_TOKENS
    answer_tokens: int = ANSWER_TOKENS


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """Steps in which each of so many sequences gets one token, and nothing else is computed."""

    sequences: int
    context_tokens: int = CONTEXT_TOKENS
    """Of each sequence, in the middle of the steps; at least LEAST_CONTEXT."""

    @property
    def prompt_tokens(self) -> int:
        """What is prefilled before."""
        return self.context_tokens - LEAST_CONTEXT + 1

    @property
    def answer_tokens(self) -> int:
        """More than come: nobody may end before the last step."""
        return DECODE_STEPS + 4 * WARM_STEPS


class ProfileRun:
    """Runs shapes on one engine, one after another. Its ids never repeat, so nothing comes from a cache."""

    def __init__(
        self, engine: Engine, vocab_size: int, computation: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """``computation``: what computes, in words."""
        self._engine = engine
        self._computation = computation
        self._vocab_size = vocab_size
        self._random = random.Random(11)
        self._serial = 0

    def run(self, shape: RunShape) -> Budget:
        """Answer everything, and say what the time went to."""
        waiting = self._specs(shape.requests, shape.prompt_tokens, shape.answer_tokens)
        before = read_profile(self._engine.profile, time.perf_counter())
        running = sum(self._add(waiting) for _ in range(shape.sequences))
        while running:
            for output in self._engine.step(time.perf_counter()):
                if output.finish_reason is not None:
                    running += self._add(waiting) - 1
        budget = between(before, read_profile(self._engine.profile, time.perf_counter()))
        return replace(budget, computation=self._computation)

    def decode(self, shape: DecodeShape) -> Budget:
        """What the time of decode steps went to, prefills left out.

        RequestError: the model's context is too short. ServiceError: the KV cache is, or a step was not one
        token for each.
        """
        lengths: dict[str, int] = {}
        for spec in self._specs(shape.sequences, shape.prompt_tokens, shape.answer_tokens):
            self._engine.add(spec)
            lengths[spec.request_id] = shape.prompt_tokens
        try:
            self._hold_at_first_tokens(lengths)
            for request_id in lengths:
                self._engine.unhold(request_id)
            for _ in range(WARM_STEPS):
                self._step(lengths)
            budget, context = self._measure_decodes(lengths)
        finally:
            self._end(lengths)
        if budget.tokens != DECODE_STEPS * shape.sequences:
            raise ServiceError(
                f"{budget.steps} steps brought {budget.tokens} tokens: they were not of all "
                f"{shape.sequences} sequences",
                hint="fewer --sequences, or a shorter --context",
            )
        return replace(budget, computation=self._computation, context_tokens=context)

    def _hold_at_first_tokens(self, lengths: dict[str, int]) -> None:
        waiting = set(lengths)
        while waiting:
            outputs = self._step(lengths)
            if not outputs and not self._engine.has_runnable:
                raise ServiceError(
                    f"the KV cache holds {len(lengths) - len(waiting)} of {len(lengths)} sequences of this "
                    "context",
                    hint="fewer --sequences, or a shorter --context",
                )
            for output in outputs:
                waiting.discard(output.key.request_id)
                self._engine.hold(output.key.request_id)

    def _measure_decodes(self, lengths: dict[str, int]) -> tuple[Budget, float]:
        """The budget of the next steps, and the mean context that their tokens were computed on."""
        before, begun = read_profile(self._engine.profile, time.perf_counter()), sum(lengths.values())
        for _ in range(DECODE_STEPS):
            self._step(lengths)
        budget = between(before, read_profile(self._engine.profile, time.perf_counter()))
        # Each step computes the last known token: of `begun` at first, of one less than the end at last.
        return budget, (begun + sum(lengths.values()) - len(lengths)) / 2 / len(lengths)

    def _step(self, lengths: dict[str, int]) -> tuple[Output, ...]:
        """One step; sequences are as much longer as it brings. ServiceError: one ended."""
        outputs = self._engine.step(time.perf_counter())
        for output in outputs:
            lengths[output.key.request_id] += len(output.token_ids)
            if output.finish_reason is not None:
                raise ServiceError(
                    f"a sequence ended early ({output.finish_reason}): {output.error_message or 'no reason'}"
                )
        return outputs

    def _end(self, lengths: dict[str, int]) -> None:
        for request_id in lengths:
            self._engine.cancel(request_id, FinishReason.CANCELLED)
        while self._engine.has_work:
            self._engine.step(time.perf_counter())

    def _add(self, waiting: Iterator[RequestSpec]) -> int:
        """The next request, if there is one; how many."""
        spec = next(waiting, None)
        if spec is None:
            return 0
        self._engine.add(spec)
        return 1

    def _specs(self, requests: int, prompt_tokens: int, answer_tokens: int) -> Iterator[RequestSpec]:
        for _ in range(requests):
            self._serial += 1
            prompt = tuple(self._random.randrange(self._vocab_size) for _ in range(prompt_tokens))
            sampling = Sampling(temperature=0.0, ignore_eos=True)
            yield RequestSpec(f"profile-{self._serial}", 0, prompt, sampling, answer_tokens)
