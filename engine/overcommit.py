"""How many blocks the running requests will need at once, if answers are as long as they usually are.

    peak = max over i of (current_1 + … + current_i + i · remaining_i)     sorted by remaining, longest first

When the request with the i-th most remaining ends, exactly the i longest ones are still there and each has
grown by its remaining. Reserving every longest answer instead would leave most of the pool unused.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Iterable
from itertools import accumulate


class PeakEstimate:
    """The peak of a set of requests, as (current, remaining) in one unit, and of the set with one more."""

    def __init__(self, requests: Iterable[tuple[float, float]] = ()) -> None:
        # Negated remaining, so that ascending order is longest first.
        self._sorted = sorted((-remaining, current) for current, remaining in requests)
        self._reckon()

    def __len__(self) -> int:
        return len(self._sorted)

    @property
    def peak(self) -> float:
        """Most that the set needs at once."""
        return self._before[-1]

    def with_one_more(self, current: float, remaining: float) -> float:
        """The peak if this request joined: O(log n)."""
        place = bisect_right(self._sorted, (-remaining, math.inf))
        held = self._sums[place] + current
        return max(self._before[place], held + (place + 1) * remaining, self._after[place] + current)

    def add(self, current: float, remaining: float) -> None:
        """Let a request join."""
        insort(self._sorted, (-remaining, current))
        self._reckon()

    def _reckon(self) -> None:
        remaining = [-negated for negated, _ in self._sorted]
        self._sums = [0.0, *accumulate(current for _, current in self._sorted)]
        needs = [
            held + (place + 1) * left
            for place, (held, left) in enumerate(zip(self._sums[1:], remaining, strict=True))
        ]
        # One more in front moves everybody behind it by one place: one more ``remaining`` each.
        moved = [need + left for need, left in zip(needs, remaining, strict=True)]
        self._before = [0.0, *accumulate(needs, max)]
        self._after = [*reversed([*accumulate(reversed(moved), max)]), 0.0] if moved else [0.0]


class OutputQuantiles:
    """How long answers usually get, per tenant, from its last ``window`` answers.

    With fewer than ``min_samples`` of them the longest answer allowed is expected. Tenants are forgotten,
    least recently seen first, beyond ``max_tenants``.
    """

    def __init__(
        self, quantile: float = 0.9, *, window: int = 64, min_samples: int = 8, max_tenants: int = 1024
    ) -> None:
        if not 0.0 < quantile <= 1.0:
            raise ValueError(f"quantile is {quantile}: give more than 0 and at most 1")
        self._quantile = quantile
        self._window = window
        self._min_samples = min_samples
        self._max_tenants = max_tenants
        self._lengths: OrderedDict[str, tuple[deque[int], list[int]]] = OrderedDict()
        """Per tenant its last answers' lengths, by age and sorted."""

    def observe(self, tenant: str, output_tokens: int) -> None:
        """An answer of this tenant ended by itself after so many tokens."""
        aged, ordered = self._lengths.setdefault(tenant, (deque(), []))
        self._lengths.move_to_end(tenant)
        aged.append(output_tokens)
        insort(ordered, output_tokens)
        if len(aged) > self._window:
            del ordered[bisect_left(ordered, aged.popleft())]
        if len(self._lengths) > self._max_tenants:
            self._lengths.popitem(last=False)

    def knows(self, tenant: str) -> bool:
        """Whether enough answers of this tenant were seen to expect anything but the longest."""
        seen = self._lengths.get(tenant)
        return seen is not None and len(seen[1]) >= self._min_samples

    def remaining_tokens(self, tenant: str, generated_tokens: int, max_tokens: int) -> int:
        """Tokens that an answer with ``generated_tokens`` will probably still get, at most to ``max_tokens``.

        The quantile of those past answers that were longer than this one is by now.
        """
        longest = max_tokens - generated_tokens
        known = self._lengths.get(tenant)
        ordered = [] if known is None else known[1]
        if len(ordered) < self._min_samples:
            return longest
        first = bisect_right(ordered, generated_tokens)
        longer = len(ordered) - first
        if longer == 0:
            # Longer than all we know of: as much again, rather than the worst case.
            return min(longest, max(1, generated_tokens))
        expected = ordered[first + math.ceil(self._quantile * longer) - 1] - generated_tokens
        return min(longest, expected)
