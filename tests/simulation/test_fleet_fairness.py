"""Fairness across a fleet, on a virtual clock: nobody is buried, shares follow weights, while workers die."""

from __future__ import annotations

import pytest
from tests.simulation.fleet_world import TOKENS_PER_SECOND, FleetWorld

ANSWER = 50
SERVICE_SECONDS = ANSWER / TOKENS_PER_SECOND
TRICKLERS = "BCDEFGHIJ"


@pytest.mark.parametrize("kills", [False, True])
async def test_ten_thousand_jobs_of_one_tenant_hold_up_nobody_else(kills: bool) -> None:
    world = FleetWorld(workers=4, slots=8)
    for _ in range(10_000):
        await world.submit("A", ANSWER)
    for tenant in TRICKLERS:
        _trickle(world, tenant, every_seconds=1.0)
    if kills:
        _kill(world, every_seconds=5.0)
    await world.run(60)
    waits = [each.started - each.created for each in world.started if each.tenant != "A"]
    assert len(waits) > 400
    assert (world.kills > 10) is kills
    assert max(waits) <= 2 * SERVICE_SECONDS
    assert sum(each.tenant == "A" for each in world.started) > 700, "and what they leave is A's"


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
async def test_shares_of_a_fleet_follow_the_weights(seed: int, kills: bool) -> None:
    """Answers of very different lengths, each far shorter than its job allows itself."""
    world = FleetWorld(workers=4, slots=8, seed=seed)
    weights = {"A": 4.0, "B": 2.0, "C": 1.0, "D": 1.0, "E": 0.5}
    await world.queue.set_weights("tiny", weights)
    for tenant, weight in weights.items():
        for _ in range(round(400 * weight)):
            answer = world.rng.randint(5, 95)
            await world.submit(tenant, answer, answer * world.rng.choice((1, 2, 20 if tenant in "AC" else 3)))
    if kills:
        _kill(world, every_seconds=4.0)
    await world.run(60)
    assert len({each.tenant for each in await world.queue.tenants("tiny")}) == len(weights), "all still wait"
    total = sum(world.tokens.values())
    assert total > 0.75 * 60 * 32 * TOKENS_PER_SECOND
    for tenant, weight in weights.items():
        share = world.tokens[tenant] / total
        assert share == pytest.approx(weight / sum(weights.values()), rel=0.05), tenant


async def test_who_pauses_neither_gains_nor_loses() -> None:
    """A tenant that has nothing to do for a while gets its share again afterwards, and no more."""
    world = FleetWorld(workers=4, slots=8)
    for _ in range(3000):
        await world.submit("A", ANSWER)
    await world.run(20)
    for _ in range(3000):
        await world.submit("B", ANSWER)
    await world.run(5)
    before = dict(world.tokens)
    await world.run(30)
    gained = {tenant: world.tokens[tenant] - before.get(tenant, 0) for tenant in "AB"}
    assert gained["A"] == pytest.approx(gained["B"], rel=0.05)


def _trickle(world: FleetWorld, tenant: str, every_seconds: float) -> None:
    async def post() -> None:
        await world.submit(tenant, ANSWER)
        world.after(world.rng.expovariate(1 / every_seconds), post)

    world.after(world.rng.uniform(0, every_seconds), post)


def _kill(world: FleetWorld, every_seconds: float) -> None:
    async def kill() -> None:
        await world.kill_one()
        world.after(every_seconds, kill)

    world.after(every_seconds, kill)
