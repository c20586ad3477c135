"""What others are swapped out for is theirs: [S6] a preemption makes its beneficiary fit, once."""

from __future__ import annotations

import pytest
from tests.engine.rig import Rig

from headway.engine.values import FinishReason


def crowded(copy_delay: int) -> Rig:
    """Three of a low class on 12 blocks: each takes another block every second step."""
    rig = Rig(blocks=12, slots=64, policy="priority", copy_delay=copy_delay)
    for name in ("low1", "low2", "low3"):
        rig.add(name, prompt=6, max_tokens=10, first=10 * ord(name[-1]), priority=2)
    rig.step()
    return rig


@pytest.mark.parametrize("copy_delay", range(5))
def test_who_others_are_swapped_out_for_starts_when_their_blocks_are_free(copy_delay: int) -> None:
    rig = crowded(copy_delay)
    high = rig.add("high", prompt=6, max_tokens=3, priority=0)
    last_without = 0
    while not rig.tokens["high"]:
        plan = rig.step()
        assert plan is not None
        if not any(chunk.key.request_id == "high" for chunk in plan.chunks):
            last_without = plan.step
    assert rig.preemptions == 1, "and nobody grew into them, or had to give way for that"
    assert last_without <= 2 + max(1, copy_delay)
    rig.run()
    assert rig.is_right(high)


def test_a_claim_ends_with_whoever_has_it() -> None:
    rig = crowded(copy_delay=3)
    rig.add("high", prompt=6, max_tokens=3, priority=0)
    rig.step()
    assert rig.memory.spare_blocks() < rig.ledger.available_blocks or rig.memory.coming_blocks
    rig.scheduler.cancel("high", FinishReason.CANCELLED)
    assert rig.memory.spare_blocks() == rig.ledger.available_blocks
    rig.run()
    assert all(rig.ends[name] == [FinishReason.LENGTH] for name in ("low1", "low2", "low3"))


def test_a_claim_that_nobody_takes_up_expires_when_the_copies_are_done() -> None:
    rig = crowded(copy_delay=2)
    rig.add("high", prompt=6, max_tokens=3, priority=0)
    rig.step()
    rig.scheduler.hold("high")
    for _ in range(200):
        rig.step()
        if all(rig.ends[name] for name in ("low1", "low2", "low3")):
            break
    assert all(rig.ends[name] for name in ("low1", "low2", "low3")), "held, it is in nobody's way"
