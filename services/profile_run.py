"""An engine run in this process, for its budget: so many sequences at a time, no queue, no reader."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from headway.engine.engine import Engine
from headway.engine.values import RequestSpec, Sampling
from headway.services.profile import Budget, between, read_profile

PROMPT_TOKENS: Final = 180
ANSWER_TOKENS: Final = 94
"""As the work that peers are compared on (docs/benchmarks.md), on average."""


@dataclass(frozen=True, slots=True)
class RunShape:
    """Greedy answers of full length to prompts that share nothing."""

    sequences: int
    requests: int
    prompt_tokens: int = PROMPT_TOKENS
    answer_tokens: int = ANSWER_TOKENS


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
        waiting = self._specs(shape)
        before = read_profile(self._engine.profile, time.perf_counter())
        running = sum(self._add(waiting) for _ in range(shape.sequences))
        while running:
            for output in self._engine.step(time.perf_counter()):
                if output.finish_reason is not None:
                    running += self._add(waiting) - 1
        budget = between(before, read_profile(self._engine.profile, time.perf_counter()))
        return replace(budget, computation=self._computation)

    def _add(self, waiting: Iterator[RequestSpec]) -> int:
        """The next request, if there is one; how many."""
        spec = next(waiting, None)
        if spec is None:
            return 0
        self._engine.add(spec)
        return 1

    def _specs(self, shape: RunShape) -> Iterator[RequestSpec]:
        for _ in range(shape.requests):
            self._serial += 1
            prompt = tuple(self._random.randrange(self._vocab_size) for _ in range(shape.prompt_tokens))
            sampling = Sampling(temperature=0.0, ignore_eos=True)
            yield RequestSpec(f"profile-{self._serial}", 0, prompt, sampling, shape.answer_tokens)
