"""Rates: the leaky bucket against GCRA's other definition, and what it promises in words."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from headway.queueing.leaky_bucket import BURST_MICROSECONDS, LeakyBucket

MINUTE = 60_000_000
SECOND = 1_000_000

limits = st.integers(1, 10_000)
gaps = st.one_of(st.just(0), st.integers(0, 30_000), st.integers(0, 40 * SECOND))


@dataclass
class VirtualScheduling:
    """GCRA as ITU-T I.371 also has it: by the theoretical arrival time, in exact fractions.

    The one thing added is the burst: until it is over, time stands still at its beginning.
    """

    limit: int
    arrival: Fraction = Fraction(0)
    burst_began: int = -(10**12)

    def now(self, at: int) -> int:
        return self.burst_began if at < self.burst_began + BURST_MICROSECONDS else at

    def admits(self, amount: int, at: int) -> bool:
        now = self.now(at)
        if self.arrival <= now:
            self.burst_began = now = at
        arrival = max(self.arrival, Fraction(now)) + amount * Fraction(MINUTE, self.limit)
        if arrival - now > MINUTE:
            return False
        self.arrival = arrival
        return True


def admits(bucket: LeakyBucket, amount: int, at: int) -> bool:
    bucket.drain(at)
    if bucket.wait_microseconds(amount, at) > 0:
        return False
    bucket.fill(amount, at)
    return True


@given(limits, st.lists(st.tuples(gaps, st.integers(1, 50)), max_size=80))
def test_the_bucket_admits_what_virtual_scheduling_admits(limit: int, asks: list[tuple[int, int]]) -> None:
    bucket, oracle, at = LeakyBucket(rate=limit), VirtualScheduling(limit), SECOND
    for gap, amount in asks:
        at += gap
        fits = min(amount, limit)
        assert admits(bucket, fits, at) == oracle.admits(fits, at)


@given(limits, st.lists(st.integers(0, BURST_MICROSECONDS // 400), min_size=1, max_size=300))
def test_of_one_burst_exactly_the_limit_is_admitted_however_slowly_it_arrives(
    limit: int, arrivals: list[int]
) -> None:
    bucket, at, admitted = LeakyBucket(rate=limit), SECOND, 0
    for gap in arrivals:
        at += gap
        admitted += admits(bucket, 1, at)
    assert admitted == min(limit, len(arrivals))


@given(limits, st.lists(st.tuples(gaps, st.integers(1, 200)), min_size=1, max_size=60))
def test_no_stretch_of_time_sees_more_than_a_bucket_and_its_rate(
    limit: int, asks: list[tuple[int, int]]
) -> None:
    bucket, at = LeakyBucket(rate=limit), SECOND
    admitted: list[tuple[int, int]] = []
    for gap, amount in asks:
        at += gap
        if admits(bucket, min(amount, limit), at):
            admitted.append((at, min(amount, limit)))
    for first, (begin, _) in enumerate(admitted):
        total = 0
        for end, amount in admitted[first:]:
            total += amount
            assert total * MINUTE <= limit * MINUTE + limit * (end - begin)


@given(limits, st.lists(st.tuples(gaps, st.integers(1, 200)), min_size=1, max_size=40))
def test_the_wait_is_exact_to_the_microsecond(limit: int, asks: list[tuple[int, int]]) -> None:
    bucket, at = LeakyBucket(rate=limit), SECOND
    for gap, amount in asks:
        at += gap
        bucket.drain(at)
        wait = bucket.wait_microseconds(amount, at)
        if wait:
            early = LeakyBucket(bucket.level, bucket.drained_at, bucket.held_until, bucket.rate)
            early.drain(at + wait - 1)
            assert early.wait_microseconds(amount, at + wait - 1) == 1
            at += wait
        assert admits(bucket, min(amount, limit), at)


@given(limits, st.integers(1, 200), st.integers(0, 30 * SECOND))
def test_what_is_given_back_leaves_no_trace(limit: int, amount: int, later: int) -> None:
    bucket = LeakyBucket(rate=limit)
    bucket.fill(min(amount, limit), SECOND)
    bucket.fill(-min(amount, limit), SECOND + later)
    assert bucket.level == 0
    assert bucket.left() == limit


def test_a_changed_limit_holds_for_what_was_used_before() -> None:
    bucket = LeakyBucket(rate=60)
    bucket.fill(60, SECOND)
    bucket.set_rate(600, 21 * SECOND)  # 20 s at 1 a second are drained
    assert bucket.left() == 560
    bucket.set_rate(30, 22 * SECOND)  # 1 s at 10 a second
    assert bucket.left() == 0
    assert bucket.wait_microseconds(1, 22 * SECOND) == 2 * SECOND  # 30 are used, half of one drains a second


def test_a_clock_that_was_set_back_stops_no_rate() -> None:
    bucket = LeakyBucket(rate=60)
    bucket.fill(60, 1000 * SECOND)
    bucket.drain(10 * SECOND)
    assert bucket.wait_microseconds(1, 10 * SECOND) == SECOND
    bucket.drain(11 * SECOND)
    assert bucket.left() == 1
