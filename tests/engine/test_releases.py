"""Room that comes by itself is waited for where that is cheaper, and not for long."""

from __future__ import annotations

import math

import pytest
from tests.engine.rig import Rig

from headway.engine.blocks import BlockLedger
from headway.engine.cost_model import CostModel, shape_of
from headway.engine.memory import Memory
from headway.engine.releases import MOST_DEFERRED_STEPS, release_seconds
from headway.engine.request import Request
from headway.engine.scripted import StepCost
from headway.engine.values import RequestSpec, Sampling


class Running:
    """Requests with tables on a pool of 20 blocks of one token."""

    def __init__(self) -> None:
        self.ledger = BlockLedger(20, 1)
        self.memory = Memory(self.ledger, CostModel(), is_overcommitted=True)
        self.requests: list[Request] = []

    def add(self, blocks: int, left: int, *, pending: int = 1) -> Request:
        spec = RequestSpec(f"r{len(self.requests)}", 1, tuple(range(blocks + pending)), Sampling(), left)
        request = Request(spec, len(self.requests), computed_tokens=blocks)
        request.table = self.ledger.open_table(0)
        self.ledger.extend(request.table, blocks)
        self.requests.append(request)
        return request

    def seconds(self, blocks: int, sequences: int = 0) -> float:
        return release_seconds(
            self.requests, self.memory, blocks=blocks, sequences=sequences, step_seconds=0.5
        )


def test_the_answers_that_end_first_make_the_room() -> None:
    running = Running()
    for blocks, left in ((4, 6), (2, 3), (5, 40)):
        running.add(blocks, left)
    assert [running.seconds(blocks) for blocks in (1, 2, 3, 6, 7, 11)] == [1.5, 1.5, 3.0, 3.0, 20.0, 20.0]
    assert [running.seconds(0, sequences) for sequences in (1, 2, 3)] == [1.5, 3.0, 20.0]
    assert math.isinf(running.seconds(12))
    assert math.isinf(running.seconds(0, 4))


def test_nobody_counts_on_a_prefill_or_on_who_is_held() -> None:
    running = Running()
    running.add(4, 1, pending=3)
    running.add(4, 1).is_held = True
    assert math.isinf(running.seconds(1))


def short_of_blocks(seconds_per_token: float, deferrals: int) -> Rig:
    """In the third step one request needs a block, and another gets its last token."""
    rig = Rig(blocks=5, cost=StepCost(per_step=0.01, per_new_token=seconds_per_token))
    rig.add("ending", prompt=4, max_tokens=3)
    rig.add("growing", prompt=3, max_tokens=6, first=60)
    rig.step()
    request = rig.scheduler._roster.named("growing")
    assert request is not None
    request.deferred_steps = deferrals
    return rig


def learn(rig: Rig, seconds_per_token: float) -> None:
    """Make the step model sure that a token costs so much."""
    for tokens, start in ((16, 90), (64, 0), (32, 200), (128, 50)) * 20:
        shape = shape_of([(start, tokens)])
        rig.cost.observe(shape, 0.01 + seconds_per_token * tokens)


@pytest.mark.parametrize(
    ("seconds_per_token", "deferred", "gives_way"),
    [(0.1, 0, False), (1e-4, 0, True), (0.1, MOST_DEFERRED_STEPS, True)],
    ids=["an end is near", "giving way is cheaper", "waited often enough"],
)
def test_an_end_that_is_near_is_waited_for_if_that_is_cheaper(
    seconds_per_token: float, deferred: int, gives_way: bool
) -> None:
    rig = short_of_blocks(seconds_per_token, deferred)
    learn(rig, seconds_per_token)
    rig.step()
    rig.step()
    assert rig.preemptions == gives_way
    assert rig.scheduler.load.extra["preemptions_deferred"] == (not gives_way)
