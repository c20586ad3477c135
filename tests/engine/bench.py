"""A scheduler that tests step by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from headway.engine.blocks import BlockLedger
from headway.engine.fair import FairPolicy
from headway.engine.limits import StepLimits
from headway.engine.policy import Policy
from headway.engine.prefix_cache import PrefixCache
from headway.engine.scheduler import Scheduler
from headway.engine.timeline import Happening
from headway.engine.values import (
    Emission,
    FinishReason,
    RequestSpec,
    Sampled,
    Sampling,
    StepPlan,
    StepResult,
)


class Bench:
    """A scheduler stepped by hand; every answer is the token 7."""

    def __init__(
        self, policy: Policy | None = None, *, sequences: int = 2, blocks: int = 256, is_cached: bool = False
    ) -> None:
        self.ledger = ledger = BlockLedger(blocks, 4, PrefixCache(4, is_enabled=is_cached))
        limits = StepLimits(max_step_tokens=64, max_sequences=sequences, min_chunk_tokens=8)
        self.scheduler = Scheduler(ledger, limits, policy or FairPolicy(), frozenset())
        self.now = 0.0
        self.tokens: Counter[str] = Counter()
        self.ends: dict[str, FinishReason] = {}

    def add(self, name: str, prompt: int = 4, max_tokens: int = 8, **fields: object) -> None:
        spec = RequestSpec(name, 0, (1,) * prompt, Sampling(), max_tokens, arrival_seconds=self.now)
        self.scheduler.add(replace(spec, **fields))  # type: ignore[arg-type]  # any field of the spec

    def step(self) -> StepPlan:
        plan = self.scheduler.plan(self.now)
        assert plan is not None
        self.now += 0.010
        sampled = tuple(Sampled(chunk.key, 7) for chunk in plan.chunks if chunk.samples)
        for emission in self.scheduler.apply(plan, StepResult(plan.step, sampled, 0.010), self.now):
            self.read(emission)
        self.scheduler.check()
        return plan

    def read(self, emission: Emission) -> None:
        name = emission.key.request_id
        assert name not in self.ends
        if emission.token_id is not None:
            assert emission.token_index == self.tokens[name]
            self.tokens[name] += 1
        if emission.finish_reason is not None:
            self.ends[name] = emission.finish_reason

    def run(self, most_steps: int = 1000) -> None:
        while self.scheduler.has_work and most_steps:
            self.step()
            most_steps -= 1
        assert not self.scheduler.has_work

    def happened(self, happening: Happening) -> list[str]:
        return [
            event.key.request_id for event in self.scheduler.timeline.events if event.happening is happening
        ]

    def waits(self, part: str) -> list[float]:
        """Seconds from arrival to start of those with ``part`` in their names."""
        events = [event for event in self.scheduler.timeline.events if part in event.key.request_id]
        moments = {(event.key, event.happening): event.seconds for event in events}
        return [
            seconds - moments[key, Happening.ARRIVED]
            for (key, happening), seconds in moments.items()
            if happening is Happening.STARTED
        ]


def in_step(plan: StepPlan) -> set[str]:
    """Who computes in a step."""
    return {chunk.key.request_id for chunk in plan.chunks}
