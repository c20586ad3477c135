"""A scheduler, requests for it, and steps whose runner always says the same token."""

from __future__ import annotations

from headway.engine.blocks import BlockLedger
from headway.engine.limits import StepLimits
from headway.engine.policy import Fcfs, Policy
from headway.engine.scheduler import Scheduler
from headway.engine.values import (
    Emission,
    RequestSpec,
    Sampled,
    Sampling,
    StepPlan,
    StepResult,
)

EOS = 99
TOKEN = 7


def make_scheduler(
    *,
    blocks: int = 64,
    block_size: int = 4,
    limits: StepLimits | None = None,
    policy: Policy | None = None,
) -> Scheduler:
    ledger = BlockLedger(blocks, block_size)
    return Scheduler(ledger, limits or StepLimits(), policy or Fcfs(), frozenset({EOS}))


def request(
    name: str,
    prompt: int = 4,
    max_tokens: int = 4,
    *,
    priority: int = 1,
    arrival: float = 0.0,
    epoch: int = 0,
) -> RequestSpec:
    return RequestSpec(
        request_id=name,
        epoch=epoch,
        prompt_token_ids=tuple(range(prompt)),
        sampling=Sampling(temperature=0),
        max_tokens=max_tokens,
        priority=priority,
        arrival_seconds=arrival,
    )


def result_of(plan: StepPlan, token_id: int = TOKEN) -> StepResult:
    sampled = tuple(Sampled(chunk.key, token_id) for chunk in plan.chunks if chunk.samples)
    return StepResult(plan.step, sampled, 0.001)


def planned(scheduler: Scheduler, now: float = 0.0) -> StepPlan:
    plan = scheduler.plan(now)
    assert plan is not None
    return plan


def step(scheduler: Scheduler, now: float = 0.0, token_id: int = TOKEN) -> tuple[Emission, ...]:
    plan = planned(scheduler, now)
    emissions = scheduler.apply(plan, result_of(plan, token_id), now)
    scheduler.check()
    return emissions


def sizes(plan: StepPlan) -> dict[str, int]:
    return {chunk.key.request_id: len(chunk.token_ids) for chunk in plan.chunks}
