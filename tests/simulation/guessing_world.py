"""The walk under memory pressure, with random guesses, right and wrong, and as many as there is room."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.simulation.preemption_world import PreemptionWorld

from headway.engine.budget import StepBudget
from headway.engine.cost_model import CostModel
from headway.engine.memory import Memory
from headway.engine.request import Request
from headway.engine.speculation import Drafts, Speculation

ALPHABET = b"abc"


class RandomGuesses(Speculation):
    """Guesses by an oracle that lies: each token is the next one of the answer, or any."""

    def __init__(
        self,
        memory: Memory,
        cost: CostModel,
        *,
        rng: random.Random,
        answer_of: Callable[[Request], Sequence[int]],
        max_draft_tokens: int,
    ) -> None:
        super().__init__(memory, cost, max_draft_tokens=max_draft_tokens)
        self._rng = rng
        self._answer_of = answer_of

    def choose(self, scheduled: Sequence[tuple[Request, int]], budget: StepBudget) -> Drafts:
        decodes = [request for request, tokens in scheduled if request.pending_tokens == tokens == 1]
        drafts: dict[Request, tuple[int, ...]] = {}
        left, spare = budget.tokens, self._memory.spare_blocks()
        for request in decodes:
            most = min(self._rng.randint(0, self._most), left)
            most = min(most, request.longest_tokens - request.known_tokens - 1)
            most, blocks = self._room(request, most, spare)
            if most > 0:
                drafts[request] = tuple(self._guess(request, most))
                spare -= blocks
                left -= most
        return drafts

    def _guess(self, request: Request, count: int) -> list[int]:
        follows = list(self._answer_of(request))[request.generated_tokens :]
        right = [*follows, *(self._rng.choice(ALPHABET) for _ in range(count))][:count]
        return [self._rng.choice(ALPHABET) if self._rng.random() < 0.25 else token for token in right]


class GuessingWorld(PreemptionWorld):
    """Every answer is still the one that the request would have had alone."""

    def __init__(self, rng: random.Random, **options: Any) -> None:
        self.made: list[RandomGuesses] = []

        def make(memory: Memory, cost: CostModel, *, max_draft_tokens: int) -> RandomGuesses:
            guesses = RandomGuesses(
                memory,
                cost,
                rng=rng,
                answer_of=lambda request: self.told[request.spec.request_id].answer,
                max_draft_tokens=max_draft_tokens,
            )
            self.made.append(guesses)
            return guesses

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("headway.engine.scheduler.Speculation", make)
            super().__init__(rng, alphabet=ALPHABET, max_draft_tokens=rng.randint(1, 6), **options)

    def finish(self) -> None:
        super().finish()
        (guesses,) = self.made
        self.seen.update(guessed=guesses.draft_tokens, right=guesses.right_tokens)
