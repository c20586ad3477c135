"""Copies beside the steps, on a bus that is as late as it can be: the order holds whatever it takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from tests.engine.test_host_cache import Cache

from headway.engine.host_cache import HostCache
from headway.engine.values import CopyTime


@dataclass
class LateTicket:
    """Done when the bus has got to it."""

    bus: LateBus
    seconds: float = 0.25
    is_done: bool = False

    def wait(self) -> None:
        while not self.is_done:
            self.bus.move_on()


@dataclass
class LateBus:
    """Does the oldest copy when told to, and none before: what it touches then is what it moves."""

    queue: list[tuple[Callable[[], None], LateTicket]] = field(
        default_factory=list[tuple[Callable[[], None], LateTicket]]
    )

    def carry(self, copy: Callable[[], None]) -> LateTicket:
        ticket = LateTicket(self)
        self.queue.append((copy, ticket))
        return ticket

    def move_on(self) -> None:
        copy, ticket = self.queue.pop(0)
        copy()
        ticket.is_done = True


class LateCache(Cache):
    """The same blocks with a late bus between them and the host."""

    def __init__(self) -> None:
        super().__init__()
        self.bus = LateBus()
        self.host = HostCache(self.kv, 6, itertools.count().__next__, self.bus)


def test_what_goes_out_is_what_its_step_met_however_late_the_bus() -> None:
    cache = LateCache()
    before = cache.bits()
    cache.move(1, swaps_out=[(5, 0), (2, 1)])
    cache.fill()
    assert cache.host.copied_step(1) == 0, "under way: nobody may use the slots"
    cache.bus.move_on()
    assert cache.host.copied_step(1) == 1
    cache.move(2, swaps_in=[(0, 7), (1, 3)])
    cache.bus.move_on()
    assert cache.host.copied_step(2) == 2
    assert torch.equal(cache.bits()[[7, 3]], before[[5, 2]])


def test_a_block_is_written_when_its_copy_has_arrived_and_never_before() -> None:
    cache = LateCache()
    before = cache.bits()
    cache.move(1, swaps_out=[(5, 0)])
    cache.move(2, swaps_in=[(0, 7)])
    for step in (3, 4):
        cache.move(step)
        assert cache.host.copied_step(step) == 0
        assert torch.equal(cache.bits(), before), "nothing has moved on the device"
    cache.bus.move_on()
    assert cache.host.copied_step(4) == 1, "out is complete, in is not"
    cache.bus.move_on()
    assert cache.host.copied_step(5) == 5
    assert torch.equal(cache.bits()[7], before[5])


def test_a_slot_is_read_before_a_later_plan_fills_it_again() -> None:
    cache = LateCache()
    before = cache.bits()
    cache.move(1, swaps_out=[(5, 0)])
    cache.move(2, swaps_in=[(0, 7)], swaps_out=[(1, 1)])
    cache.move(3, swaps_out=[(2, 0)])
    cache.host.copied_step(3, wait=True)
    cache.move(4, swaps_in=[(0, 6), (1, 4)])
    cache.host.copied_step(4, wait=True)
    assert torch.equal(cache.bits()[[7, 6, 4]], before[[5, 2, 1]])


def test_a_copy_that_waits_for_nothing_else_is_waited_for_and_timed_once() -> None:
    cache = LateCache()
    cache.move(9, swaps_out=[(0, 0), (1, 1), (2, 5)], swaps_in=[(3, 4)])
    assert cache.host.take_times() == ()
    assert cache.host.copied_step(9, wait=True) == 9
    assert cache.host.take_times() == (
        CopyTime(9, True, 3, 0.25, is_beside=True),
        CopyTime(9, False, 1, 0.25, is_beside=True),
    )
    assert cache.host.take_times() == ()
