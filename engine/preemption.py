"""Who gives way when memory is short, and how: defer, swap or recompute, by measured cost.

    T_swap      = bytes/BW_out + bytes/BW_in + per-run cost      bytes of its computed blocks
    T_recompute = b·(n - k) + q·(n² - k²)/2                       n computed tokens, k of them still cached
    swap        if T_swap·w < T_recompute and the host has room; w < 1 where copies run beside the computation

The choice is a value. It is verified as a whole before anything moves: a set that does not free enough now is
no set. Whoever gave way ``max_preemptions`` times is pinned: it comes back only with room for its longest
length, so it never has to give way again and every request ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Final

from headway.engine.block_table import BlockTable
from headway.engine.blocks import BlockLedger
from headway.engine.request import Request

BESIDE_WEIGHT: Final = 0.25
"""A second of copying beside the computation in seconds of the device: it keeps blocks busy and two requests
waiting, not everybody. In simulation both ways bring the same there (decision 0018)."""


class Mode(StrEnum):
    """How a request gives way."""

    SWAP = "swap"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True)
class PreemptionLimits:
    """How often and how eagerly requests give way. Raises ValueError, naming the setting, on nonsense."""

    max_preemptions: int = 3
    """Then a request is pinned: it returns with its longest length reserved and is no victim any more."""
    headroom_tokens: int = 20
    """Hysteresis: a return leaves each running request room for so many more tokens."""
    watermark: float = 0.02
    """Hysteresis: share of the pool that a return leaves free."""
    only: Mode | None = None
    """None: the cheaper way. One of them, for comparison: always that one, where it is open."""

    def __post_init__(self) -> None:
        if self.max_preemptions < 0 or self.headroom_tokens < 0 or not 0 <= self.watermark < 1:
            raise ValueError(f"{self}: give counts of at least 0 and a watermark from 0 to below 1")


@dataclass(frozen=True, slots=True)
class PreemptionCosts:
    """Measured figures behind both times, in seconds and bytes; kept current by their owner."""

    block_bytes: float
    out_bytes_per_second: float
    in_bytes_per_second: float
    seconds_per_run: float = 0.0
    """Fixed cost of copying one run of neighbouring slots, one way; a request's slots mostly are one."""
    out_slowdown: float = 1.0
    """Of copies now against those figures, as timed."""
    in_slowdown: float = 1.0
    overlap: float = 0.0
    """Share of a copy's time that runs beside the computation, in nobody's way."""
    seconds_per_token: float = 0.0
    """b: prefill time per token."""
    seconds_per_token_squared: float = 0.0
    """q: prefill time per pair of tokens."""

    def out_seconds(self, blocks: int) -> float:
        """Time to copy so many blocks to the host."""
        copied = blocks * self.block_bytes / self.out_bytes_per_second
        return (copied + self.seconds_per_run) * self.out_slowdown

    def in_seconds(self, blocks: int) -> float:
        """Time to copy so many blocks back."""
        copied = blocks * self.block_bytes / self.in_bytes_per_second
        return (copied + self.seconds_per_run) * self.in_slowdown

    def swap_seconds(self, blocks: int) -> float:
        """Time to copy so many blocks out and in again."""
        return self.out_seconds(blocks) + self.in_seconds(blocks)

    def recompute_seconds(self, tokens: int, cached_tokens: int = 0) -> float:
        """Time to compute ``tokens`` again, the first ``cached_tokens`` of them by a prefix hit."""
        squares = tokens * tokens - cached_tokens * cached_tokens
        return (
            self.seconds_per_token * (tokens - cached_tokens) + self.seconds_per_token_squared * squares / 2
        )

    def swap_harm(self, blocks: int) -> float:
        """The same in seconds of the device: what runs beside the computation counts ``BESIDE_WEIGHT``."""
        return self.swap_seconds(blocks) * (1.0 - self.overlap * (1.0 - BESIDE_WEIGHT))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running request as a possible victim; share and slack are the policy's to say."""

    request: Request
    over_share: float = 0.0
    """How far its tenant is above its share (virtual time); more gives way first."""
    slack_seconds: float = math.inf
    """Until its next token is late; more gives way first."""
    cached_tokens: int = 0
    """Of its computed tokens, those that others keep on the device anyway."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """One request gives way."""

    request: Request
    mode: Mode
    seconds: float
    """What going and coming back costs everybody by prediction, in seconds of the device."""
    freed_blocks: int
    """What it brings on its own; for a swap, once its copy is complete."""
    swap_seconds: float
    """Predicted time of the copies both ways; infinite where the host has no room."""
    recompute_seconds: float
    """Predicted time of computing again what is lost."""


class Preemptor:
    """Chooses victims; changes nothing."""

    def __init__(self, ledger: BlockLedger, limits: PreemptionLimits) -> None:
        self._ledger = ledger
        self.limits = limits

    def is_pinned(self, request: Request) -> bool:
        """Whether it gave way as often as it may."""
        return request.preemptions >= self.limits.max_preemptions

    def choose(
        self,
        candidates: Sequence[Candidate],
        needed_blocks: int,
        costs: PreemptionCosts,
        *,
        free_slots: int = 0,
        needed_sequences: int = 0,
        kept: AbstractSet[int] = frozenset(),
        above_priority: int = -1,
        step_seconds: float = 0.0,
    ) -> tuple[Preemption, ...]:
        """The requests that give way so that ``needed_blocks`` and ``needed_sequences`` more come free.

        Empty: nobody can. ``free_slots``: room on the host for swaps. ``kept``: blocks that the beneficiary
        shares with them: it has them already, so nobody makes room for it by letting go of them.
        ``above_priority``: only requests of a class strictly below (a larger number) give way, so equals
        never displace each other. ``step_seconds``: nobody gives way whose next token is due within one
        step.
        """
        willing = [
            candidate
            for candidate in candidates
            if candidate.request.spec.priority > above_priority
            and candidate.slack_seconds > step_seconds
            and self._may_go(candidate.request)
        ]

        def is_enough(chosen: list[Candidate]) -> bool:
            tables = [_table(candidate.request) for candidate in chosen]
            return (
                len(chosen) >= needed_sequences
                and self._ledger.reclaimable_blocks(tables, kept) >= needed_blocks
            )

        chosen: list[Candidate] = []
        for candidate in self._in_order(willing, costs, free_slots):
            if is_enough(chosen):
                break
            chosen.append(candidate)
        if not is_enough(chosen):
            return ()
        # Without those that the set does not need: whose blocks others share, or that are too small.
        for candidate in list(chosen):
            without = [other for other in chosen if other is not candidate]
            if is_enough(without):
                chosen = without
        return self._with_modes(chosen, costs, free_slots)

    def offer(self, candidate: Candidate, costs: PreemptionCosts, free_slots: int) -> Preemption:
        """The cheaper way for one request to give way, and what it brings."""
        request = candidate.request
        blocks = self._ledger.blocks_for(request.computed_tokens)
        recompute = costs.recompute_seconds(request.computed_tokens, candidate.cached_tokens)
        swap = costs.swap_seconds(blocks) if 0 < blocks <= free_slots else math.inf
        mode, seconds = Mode.RECOMPUTE, recompute
        harm = costs.swap_harm(blocks)
        is_wanted = harm < recompute if self.limits.only is None else self.limits.only is Mode.SWAP
        if swap < math.inf and is_wanted:
            mode, seconds = Mode.SWAP, harm
        freed = self._ledger.reclaimable_blocks([_table(request)])
        return Preemption(request, mode, seconds, freed, swap, recompute)

    def may_return(self, fresh_blocks: int, running: int, spare_blocks: int) -> bool:
        """Hysteresis: whether a request that takes ``fresh_blocks`` may come back beside ``running`` others.

        Always when nothing runs: then waiting would bring nothing.
        """
        if running == 0:
            return fresh_blocks <= spare_blocks
        growth = running * self._ledger.blocks_for(self.limits.headroom_tokens)
        spare = math.ceil(self.limits.watermark * self._ledger.block_count) + growth
        return fresh_blocks + min(spare, self._ledger.block_count // 4) <= spare_blocks

    def _may_go(self, request: Request) -> bool:
        table = request.table
        return table is not None and not self.is_pinned(request) and not self._ledger.is_fenced(table)

    def _in_order(
        self, willing: list[Candidate], costs: PreemptionCosts, free_slots: int
    ) -> Iterator[Candidate]:
        """Lowest class, most above its share, most slack, least cost per freed block, latest arrival."""
        for _, equals in groupby(sorted(willing, key=_standing), key=_standing):
            tied = list(equals)
            if len(tied) > 1:
                # Costs are reckoned only for those that nothing else tells apart.
                price = {c.request: self._price(c, costs, free_slots) for c in tied}
                tied.sort(key=lambda candidate: (price[candidate.request], -candidate.request.serial))
            yield from tied

    def _price(self, candidate: Candidate, costs: PreemptionCosts, free_slots: int) -> float:
        offer = self.offer(candidate, costs, free_slots)
        return offer.seconds / offer.freed_blocks if offer.freed_blocks else math.inf

    def _with_modes(
        self, chosen: list[Candidate], costs: PreemptionCosts, free_slots: int
    ) -> tuple[Preemption, ...]:
        """The chosen set with its modes; swaps only as far as the host has room for all of them."""
        final: list[Preemption] = []
        for candidate in chosen:
            offer = self.offer(candidate, costs, free_slots)
            if offer.mode is Mode.SWAP:
                free_slots -= self._ledger.blocks_for(candidate.request.computed_tokens)
            final.append(offer)
        return tuple(final)


def _standing(candidate: Candidate) -> tuple[float, float, float]:
    return (-candidate.request.spec.priority, -candidate.over_share, -candidate.slack_seconds)


def _table(request: Request) -> BlockTable:
    if request.table is None:
        raise AssertionError(f"{request.key} is a candidate without blocks")
    return request.table
