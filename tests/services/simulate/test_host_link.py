"""Simulated copies take their time, in order, beside each other only in opposite directions."""

from __future__ import annotations

import pytest

from headway.engine.values import BlockCopy, CopyTime, StepPlan
from headway.services.host_link import HostLink


def copies(*pairs: tuple[int, int]) -> tuple[BlockCopy, ...]:
    return tuple(BlockCopy(source, target) for source, target in pairs)


def plan(step: int, out: int = 0, into: int = 0) -> StepPlan:
    return StepPlan(
        step,
        (),
        swaps_out=copies(*((place, place) for place in range(out))),
        swaps_in=copies(*((place, place) for place in range(into))),
    )


def link() -> HostLink:
    """One second a block, nothing else."""
    return HostLink(block_bytes=8.0, bytes_per_second=8.0, seconds_per_run=0.0)


def test_nothing_under_way_is_said_so() -> None:
    quiet = link()
    quiet.send(plan(1), 0.0)
    assert quiet.copied_step(0.0) is None


def test_swaps_of_later_plans_wait_for_earlier_ones() -> None:
    busy = link()
    busy.send(plan(3, out=5), 10.0)
    busy.send(plan(5, out=2), 11.0)
    assert busy.free_at == 17.0
    assert [busy.copied_step(now) for now in (14.9, 15.0, 16.9, 17.0)] == [2, 4, 4, None]
    assert busy.busy_seconds == 7.0


def test_both_directions_run_at_once() -> None:
    busy = link()
    busy.send(plan(1, out=5), 0.0)
    busy.send(plan(2, into=4), 0.0)
    assert busy.free_at == 5.0
    assert [busy.copied_step(now) for now in (4.5, 5.0)] == [0, None]


def test_each_run_of_neighbours_costs_once() -> None:
    scattered = HostLink(block_bytes=1.0, bytes_per_second=1e12, seconds_per_run=1.0)
    out = copies((0, 0), (4, 1), (5, 2), (6, 3), (7, 9))
    scattered.send(StepPlan(1, (), swaps_out=out), 0.0)
    assert scattered.free_at == pytest.approx(2.0), "slots count: on the device blocks are gathered anyway"
    scattered.send(StepPlan(2, (), swaps_in=copies((0, 4), (2, 5), (4, 6))), 0.0)
    assert scattered.free_at == pytest.approx(3.0)


def test_a_copy_is_timed_once_it_is_complete_and_without_its_wait() -> None:
    busy = link()
    busy.send(plan(3, out=5), 10.0)
    busy.send(plan(5, out=2, into=1), 11.0)
    assert (busy.copied_step(14.0), busy.take_times()) == (2, ())
    assert (busy.copied_step(15.0), busy.take_times()) == (4, (CopyTime(3, True, 5, 5.0, is_beside=True),))
    assert busy.copied_step(17.0) is None
    assert [(time.is_out, time.blocks, time.seconds) for time in busy.take_times()] == [
        (True, 2, 2.0),
        (False, 1, 1.0),
    ]
    assert busy.take_times() == ()
