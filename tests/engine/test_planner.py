"""Steps under memory pressure: who gives way so that others grow, and who may start in such a step."""

from __future__ import annotations

from headway.engine.blocks import BlockLedger
from headway.engine.cost_model import CostModel
from headway.engine.fair import FairPolicy
from headway.engine.limits import StepLimits
from headway.engine.memory import Memory
from headway.engine.overcommit import OutputQuantiles
from headway.engine.policy import Policy, Priority
from headway.engine.scheduler import Scheduler
from headway.engine.timeline import Happening
from headway.engine.values import Objective, RequestSpec, Sampled, Sampling, StepPlan, StepResult


def crowded(blocks: int, policy: Policy | None = None) -> Scheduler:
    """A scheduler that believes every answer to be one token long, and so admits too many."""
    ledger, cost = BlockLedger(blocks, 4), CostModel()
    quantiles = OutputQuantiles(min_samples=1)
    for tenant in ("default", "first", "second", "third"):
        quantiles.observe(tenant, 1)
    memory = Memory(ledger, cost, is_overcommitted=True, quantiles=quantiles)
    limits = StepLimits(max_sequences=8)
    return Scheduler(ledger, limits, policy or Priority(), frozenset(), cost=cost, memory=memory)


def add(
    scheduler: Scheduler,
    name: str,
    prompt: int,
    max_tokens: int,
    *,
    tpot: float | None = None,
    tenant: str = "default",
) -> None:
    objective = None if tpot is None else Objective(tpot, tpot)
    spec = RequestSpec(name, 0, (1,) * prompt, Sampling(), max_tokens, tenant=tenant, objective=objective)
    scheduler.add(spec)


def step(scheduler: Scheduler, now: float) -> StepPlan | None:
    plan = scheduler.plan(now)
    if plan is not None:
        sampled = tuple(Sampled(chunk.key, 7) for chunk in plan.chunks if chunk.samples)
        scheduler.apply(plan, StepResult(plan.step, sampled, 0.01), now + 0.01)
    scheduler.check()
    return plan


def happened(scheduler: Scheduler, step_number: int) -> list[tuple[str, Happening]]:
    events = scheduler.timeline.events
    return [(e.key.request_id, e.happening) for e in events if e.step == step_number]


def test_case_23_requests_that_are_all_late_still_make_room_for_each_other() -> None:
    scheduler = crowded(blocks=6)
    for name in ("a", "b"):
        add(scheduler, name, prompt=4, max_tokens=16, tpot=1e-6)
    for place in range(100):
        if not scheduler.has_work:
            break
        step(scheduler, 1.0 + place)
    assert not scheduler.has_work
    assert scheduler.load.extra["preemptions_recompute"] >= 1


def test_where_all_need_a_block_and_nobody_can_free_enough_for_all_the_first_grows() -> None:
    """Found by a walk of 5 * 10^5 steps: both waited for ever, since giving way frees one block, not two."""
    scheduler = crowded(blocks=3)
    add(scheduler, "large", prompt=5, max_tokens=7)
    add(scheduler, "small", prompt=1, max_tokens=5)
    for place in range(40):
        if not scheduler.has_work:
            break
        step(scheduler, float(place))
    assert not scheduler.has_work
    assert scheduler.load.extra["preemptions_recompute"] >= 1


def test_a_step_in_which_somebody_gave_way_starts_nobody_else() -> None:
    scheduler = crowded(blocks=6)
    for name in ("a", "b"):
        add(scheduler, name, prompt=4, max_tokens=16)
    gave_way = 0
    for place in range(60):
        if place == 3:
            add(scheduler, "small", prompt=1, max_tokens=1)
            add(scheduler, "other", prompt=1, max_tokens=1)
        plan = step(scheduler, float(place))
        if plan is None:
            break
        events = happened(scheduler, plan.step)
        if any(what is Happening.RECOMPUTED for _, what in events):
            gave_way += 1
            assert not any(what in (Happening.STARTED, Happening.RESUMED) for _, what in events)
            # Somebody waits who would have fit.
            add(scheduler, f"tiny{place}", prompt=1, max_tokens=1)
        elif place > 3:
            add(scheduler, f"more{place}", prompt=1, max_tokens=2)
    assert gave_way >= 1


def test_the_first_of_those_who_grow_never_gives_way_though_its_tenant_has_most() -> None:
    scheduler = crowded(blocks=6, policy=FairPolicy())
    add(scheduler, "first", prompt=7, max_tokens=14, tenant="first")
    for name in ("second", "third"):
        add(scheduler, name, prompt=3, max_tokens=18, tenant=name)
    for place in range(200):
        if step(scheduler, float(place)) is None:
            break
    lost = [e.key.request_id for e in scheduler.timeline.events if e.happening is Happening.RECOMPUTED]
    assert lost
    assert "first" not in lost
    assert not scheduler.has_work


def test_the_runner_forgets_who_lost_its_kv_and_learns_it_afresh() -> None:
    scheduler = crowded(blocks=6)
    for name in ("a", "b"):
        add(scheduler, name, prompt=4, max_tokens=16)
    told: list[tuple[str, int]] = []
    for place in range(100):
        plan = step(scheduler, float(place))
        if plan is None:
            break
        told += [("forget", key.request_id == "b") for key in plan.released if key.request_id == "b"]
        told += [
            ("learn", len(admitted.generated_token_ids))
            for admitted in plan.admitted
            if admitted.key.request_id == "b"
        ]
    assert [what for what, _ in told[:3]] == ["learn", "forget", "learn"]
    # It comes back with the tokens that it had.
    assert told[0][1] == 0 < told[2][1]
