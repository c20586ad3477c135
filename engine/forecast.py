"""When a request will end if it is taken in now, by what was measured.

    end = now + work ahead / service rate + prefill + answer · step time

Not pessimistic without evidence: until steps were measured nothing is known, and of a tenant whose answers
have not been seen one token is expected.
"""

from __future__ import annotations

from typing import Final

from headway.engine.cost_model import CostModel
from headway.engine.memory import Memory
from headway.engine.policy import Policy
from headway.engine.request import Request

NEWEST_SHARE: Final = 0.05
"""Weight of the newest step in the averages."""


class Forecast:
    """Times of future work on this machine under its present load."""

    def __init__(self, cost: CostModel, policy: Policy, memory: Memory, max_step_tokens: int) -> None:
        self._cost = cost
        self._policy = policy
        self._memory = memory
        self.max_step_tokens = max_step_tokens
        self._step_seconds = 0.0
        self._tokens_per_step = 0.0

    @property
    def is_known(self) -> bool:
        """Whether there is anything to predict from."""
        return self._cost.is_trusted and self._step_seconds > 0.0

    def observe(self, tokens: float, seconds: float) -> None:
        """A step computed so many tokens in so long."""
        if self._step_seconds == 0.0:
            self._step_seconds, self._tokens_per_step = seconds, tokens
        self._step_seconds += NEWEST_SHARE * (seconds - self._step_seconds)
        self._tokens_per_step += NEWEST_SHARE * (tokens - self._tokens_per_step)

    def wait_seconds(self, request: Request) -> float:
        """Until what goes before a newcomer is done."""
        ahead = self._policy.ahead(request, self._work)
        return ahead * self._step_seconds / max(self._tokens_per_step, 1.0)

    def service_seconds(self, request: Request) -> float:
        """From its start to its end: prefill of what is not cached, then a step for each further token."""
        start = self._memory.cached_tokens(request)
        missing = request.known_tokens - start
        steps = max(1, -(-missing // self.max_step_tokens))
        prefill = self._cost.marginal_seconds(start, missing) + steps * self._cost.step_seconds()
        return prefill + max(0, self._answer_tokens(request) - 1) * self._step_seconds

    def _work(self, request: Request) -> float:
        return float(request.pending_tokens + self._answer_tokens(request))

    def _answer_tokens(self, request: Request) -> int:
        tenant, quantiles = request.spec.tenant, self._memory.quantiles
        if not quantiles.knows(tenant):
            return 1
        return quantiles.remaining_tokens(tenant, request.generated_tokens, request.spec.max_tokens)
