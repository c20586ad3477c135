"""Who gives way and how: by class, share, slack and cost, verified before anything moves."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from headway.engine.block_table import BlockTable
from headway.engine.blocks import BlockLedger
from headway.engine.preemption import (
    BESIDE_WEIGHT,
    Candidate,
    Mode,
    PreemptionCosts,
    PreemptionLimits,
    Preemptor,
)
from headway.engine.prefix_cache import PrefixCache
from headway.engine.request import Request
from headway.engine.values import RequestSpec, Sampling

COSTS = PreemptionCosts(
    block_bytes=1e6,
    out_bytes_per_second=25e9,
    in_bytes_per_second=25e9,
    seconds_per_run=1e-5,
    seconds_per_token=1e-4,
    seconds_per_token_squared=1e-9,
)


class Pool:
    """A ledger with running requests, one token per block."""

    def __init__(self, blocks: int = 20, limits: PreemptionLimits | None = None) -> None:
        self.ledger = BlockLedger(blocks, 1, PrefixCache(1))
        self.preemptor = Preemptor(self.ledger, limits or PreemptionLimits())
        self.requests: list[Request] = []

    def run(self, tokens: int, *, priority: int = 1, preemptions: int = 0, step: int = 0) -> Candidate:
        serial = len(self.requests)
        spec = RequestSpec(
            f"r{serial}", 0, tuple(range(tokens + 1)), Sampling(), max_tokens=5, priority=priority
        )
        request = Request(spec, serial, computed_tokens=tokens, preemptions=preemptions)
        request.table = self.ledger.open_table(0)
        self.ledger.extend(request.table, tokens, step)
        self.requests.append(request)
        return Candidate(request)

    def victims(self, candidates: list[Candidate], blocks: int, **how: float) -> list[int]:
        chosen = self.preemptor.choose(candidates, blocks, COSTS, **how)  # type: ignore[arg-type]  # int or float
        return [preemption.request.serial for preemption in chosen]


def test_the_lowest_class_gives_way_first_then_share_then_slack_then_cost_then_the_latest() -> None:
    pool = Pool()
    same = [pool.run(4), pool.run(4)]
    assert pool.victims(same, 2) == [1], "the latest arrival"
    big = pool.run(6)
    assert pool.victims([*same, big], 2, free_slots=20) == [2], "the fixed cost of a copy brings the most"
    patient = replace(same[0], slack_seconds=5.0)
    others = [replace(candidate, slack_seconds=1.0) for candidate in (same[1], big)]
    assert pool.victims([patient, *others], 2) == [0]
    greedy = replace(others[0], over_share=1.0)
    assert pool.victims([patient, greedy, others[1]], 2) == [1]
    assert pool.victims([patient, greedy, pool.run(2, priority=2)], 2) == [3]


def test_case_14_a_victim_whose_blocks_do_not_come_free_now_is_none() -> None:
    pool = Pool()
    fenced = pool.run(4, step=7)
    assert pool.victims([fenced], 2) == []
    pool.ledger.complete(7)
    assert pool.victims([fenced], 2) == [0]


def test_a_set_that_does_not_free_enough_is_no_set() -> None:
    pool = Pool()
    candidates = [pool.run(4), pool.run(4)]
    assert pool.victims(candidates, 9) == []
    assert pool.victims(candidates, 8) == [1, 0]


def test_shared_blocks_free_nothing_until_all_who_share_them_go() -> None:
    pool = Pool()
    parent = pool.run(4)
    table = _table(parent.request)
    child = Request(replace(parent.request.spec, request_id="child"), 9, computed_tokens=4)
    child.table, _ = pool.ledger.fork_table(table, 4, 4, 0)
    assert pool.ledger.reclaimable_blocks([table]) == 0
    assert pool.ledger.reclaimable_blocks([table, child.table]) == 4
    other = pool.run(2, priority=0)
    assert pool.victims([parent, other], 2) == [1], "the parent alone would bring nothing"
    assert sorted(pool.victims([parent, Candidate(child), other], 6)) == [0, 1, 9]


def test_only_what_others_hold_stays_for_a_recompute() -> None:
    ledger = BlockLedger(8, 1, PrefixCache(1))
    tokens = [1, 2, 3, 4]
    chain = ledger.cache.chain(tokens, "a")
    table = ledger.open_table(0)
    ledger.extend(table, 4)
    ledger.publish(table, chain, 4)
    assert ledger.kept_blocks(table) == 0, "published, but the room that it would give back is what is needed"
    ledger.open_table(0, ledger.cache.match(chain, 3))
    assert ledger.kept_blocks(table) == 2


def test_equals_never_displace_each_other_and_better_classes_are_never_displaced() -> None:
    pool = Pool()
    candidates = [pool.run(4, priority=priority) for priority in (0, 1, 2)]
    assert pool.victims(candidates, 1, above_priority=1) == [2]
    assert pool.victims(candidates[:2], 1, above_priority=1) == []


def test_case_1_a_place_can_be_what_is_short() -> None:
    pool = Pool()
    candidates = [pool.run(4, priority=2), pool.run(4, priority=2)]
    assert pool.victims(candidates, 0, needed_sequences=1, above_priority=0) == [1]
    assert pool.victims(candidates, 0, needed_sequences=3, above_priority=0) == []
    fenced = [pool.run(4, priority=2, step=7)]
    assert pool.victims(fenced, 0, needed_sequences=1, above_priority=0) == []


def test_case_3_nobody_gives_way_more_often_than_agreed() -> None:
    pool = Pool(limits=PreemptionLimits(max_preemptions=2))
    assert pool.victims([pool.run(4, preemptions=2)], 1) == []
    assert pool.victims([pool.run(4, preemptions=1)], 1) == [1]


def test_nobody_gives_way_whose_next_token_is_due_within_a_step() -> None:
    pool = Pool()
    late = replace(pool.run(4), slack_seconds=0.05)
    assert pool.victims([late], 1, step_seconds=0.1) == []
    assert pool.victims([late], 1, step_seconds=0.01) == [0]


def test_swap_or_recompute_is_a_matter_of_cost() -> None:
    pool = Pool(blocks=3000)
    long, short = pool.run(2000), pool.run(2)
    assert pool.preemptor.offer(long, COSTS, 3000).mode is Mode.SWAP
    assert pool.preemptor.offer(long, COSTS, 1999).mode is Mode.RECOMPUTE, "no room on the host"
    slow = replace(COSTS, out_bytes_per_second=1e9, in_bytes_per_second=1e9)
    assert pool.preemptor.offer(long, slow, 3000).mode is Mode.RECOMPUTE
    assert pool.preemptor.offer(long, replace(slow, overlap=1.0), 3000).mode is Mode.RECOMPUTE
    beside = replace(slow, seconds_per_token=1.5e-3, overlap=1.0)
    assert pool.preemptor.offer(long, beside, 3000).mode is Mode.SWAP, "a copy beside the steps costs less"
    assert pool.preemptor.offer(long, replace(beside, overlap=0.0), 3000).mode is Mode.RECOMPUTE
    cached = replace(long, cached_tokens=1999)
    assert pool.preemptor.offer(cached, COSTS, 3000).mode is Mode.RECOMPUTE, "most of it is still cached"
    dear = replace(COSTS, seconds_per_run=1.0)
    assert pool.preemptor.offer(short, dear, 3000).mode is Mode.RECOMPUTE, "too small to be worth a copy"


def test_for_comparison_one_way_can_be_always_taken() -> None:
    for only, mode in ((Mode.SWAP, Mode.SWAP), (Mode.RECOMPUTE, Mode.RECOMPUTE), (None, Mode.SWAP)):
        pool = Pool(blocks=3000, limits=PreemptionLimits(only=only))
        offer = pool.preemptor.offer(pool.run(2000), COSTS, 3000)
        assert offer.mode is mode
        assert offer.seconds == (offer.swap_seconds if mode is Mode.SWAP else offer.recompute_seconds)
    swaps = Pool(limits=PreemptionLimits(only=Mode.SWAP))
    assert swaps.preemptor.offer(swaps.run(2), COSTS, 1).mode is Mode.RECOMPUTE, "the host has no room"


def test_a_set_swaps_only_as_much_as_the_host_holds() -> None:
    pool = Pool(blocks=300)
    candidates = [pool.run(100), pool.run(100)]
    chosen = pool.preemptor.choose(candidates, 200, COSTS, free_slots=150)
    assert [preemption.mode for preemption in chosen] == [Mode.SWAP, Mode.RECOMPUTE]


def test_costs_follow_the_formulas() -> None:
    assert COSTS.swap_seconds(4) == pytest.approx(2 * 4e6 / 25e9 + 2 * 1e-5)
    slower = replace(COSTS, in_slowdown=3.0)
    assert slower.swap_seconds(4) == pytest.approx(2 * COSTS.swap_seconds(4))
    assert COSTS.recompute_seconds(1000, 200) == pytest.approx(0.08 + 1e-9 * (1000**2 - 200**2) / 2)
    offered = Pool(blocks=300)
    offer = offered.preemptor.offer(offered.run(200), replace(COSTS, overlap=1.0), 300)
    assert offer.swap_seconds == COSTS.swap_seconds(200)
    assert offer.recompute_seconds == COSTS.recompute_seconds(200)
    assert offer.seconds == pytest.approx(BESIDE_WEIGHT * offer.swap_seconds)


def test_coming_back_leaves_the_others_room_to_grow() -> None:
    pool = Pool(blocks=100, limits=PreemptionLimits(headroom_tokens=5, watermark=0.05))
    assert pool.preemptor.may_return(85, running=2, spare_blocks=100)
    assert not pool.preemptor.may_return(86, running=2, spare_blocks=100)
    assert pool.preemptor.may_return(100, running=0, spare_blocks=100), (
        "when nothing runs, waiting brings nothing"
    )
    assert not pool.preemptor.may_return(101, running=0, spare_blocks=100)


@pytest.mark.parametrize(
    ("name", "value"), [("max_preemptions", -1), ("headroom_tokens", -1), ("watermark", 1.0)]
)
def test_limits_that_cannot_work_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}={value}"):
        replace(PreemptionLimits(), **{name: value})  # type: ignore[arg-type]  # the wrong values are the test


def test_slack_is_endless_without_a_deadline() -> None:
    assert Pool().run(1).slack_seconds == math.inf


def _table(request: Request) -> BlockTable:
    assert request.table is not None
    return request.table
