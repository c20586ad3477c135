"""The memory side of the scheduler: how a request gets its blocks, gives way, and comes back.

    waiting ──open──► running ──give_way──► waiting ──open──► …   recompute: without KV · swap: KV on the host

Reserved in full, a started request never lacks a block. Overcommitted, only its known tokens are reserved;
when the estimate was wrong somebody gives way, and who did so too often comes back reserved in full.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from headway.engine.block_table import BlockTable
from headway.engine.blocks import BlockLedger
from headway.engine.cost_model import CostModel
from headway.engine.errors import InvariantError
from headway.engine.host_pool import HostPool
from headway.engine.overcommit import OutputQuantiles, PeakEstimate
from headway.engine.preemption import (
    Candidate,
    Mode,
    Preemption,
    PreemptionCosts,
    PreemptionLimits,
    Preemptor,
)
from headway.engine.prefix_cache import HashChain
from headway.engine.request import Request
from headway.engine.values import BlockCopy, StepPlan

RECOMPUTE_ONLY = PreemptionCosts(block_bytes=1.0, out_bytes_per_second=1e-9, in_bytes_per_second=1e-9)
"""Without a host pool nothing is copied."""

UNKNOWN_TOKEN_SECONDS: Final = 0.01
"""Recomputing a token, while the step model cannot tell: dear, since the cost of copies is measured."""


class Memory:
    """Blocks, cache and host pool of one scheduler. ``costs``: what a swap costs; the rest is learned."""

    def __init__(
        self,
        ledger: BlockLedger,
        cost: CostModel,
        *,
        is_overcommitted: bool,
        host: HostPool | None = None,
        costs: PreemptionCosts = RECOMPUTE_ONLY,
        limits: PreemptionLimits | None = None,
        quantiles: OutputQuantiles | None = None,
    ) -> None:
        self.ledger = ledger
        self.host = host or HostPool(ledger, 0)
        self.preemptor = Preemptor(ledger, limits or PreemptionLimits())
        self.quantiles = quantiles or OutputQuantiles()
        self.preemptions = dict.fromkeys(Mode, 0)
        """How often each mode was chosen."""
        self.lost_tokens = 0
        """Computed tokens that a preemption threw away."""
        self.looked_up_tokens = 0
        """Known tokens of requests at their first start."""
        self.hit_tokens = 0
        """Of those, what the prefix cache held."""
        self.regained_tokens = 0
        """What it held of requests that come back from a preemption: no hits, the work was ours before."""
        self._cost = cost
        self._costs = costs
        self.is_overcommitted = is_overcommitted
        self._swaps_out: list[tuple[int, BlockCopy]] = []
        self._swaps_in: list[tuple[int, BlockCopy]] = []
        """Copies that no applied plan has carried yet, each with the step that planned it."""
        self._carried: dict[int, int] = {}
        """Steps that planned swaps, to the last plan that carries them, until those are complete."""
        self._last_swap_step = 0
        self._copied_step = 0

    # -- The prefix cache ------------------------------------------------------------------------------------

    def cached_tokens(self, request: Request) -> int:
        """How much of a waiting request's KV is there already: cached, or parked on the host."""
        if request.parked is not None:
            return request.parked.tokens
        return len(self._prefix(request)) * self.ledger.block_size

    def is_expected(self, request: Request) -> bool:
        """Whether this step computes, for another request, the next block that this one needs."""
        if request.parked is not None:
            return False
        return self.ledger.cache.is_expected(self._chain(request), request.known_tokens)

    def expect(self, prefills: Iterable[Request], *, is_ahead: bool = False) -> None:
        """A new step, which computes more of these prefills. ``is_ahead``: the last one is under way."""
        self.ledger.cache.forget_expected(but_last=is_ahead)
        for request in prefills:
            self.expect_more(request)

    def expect_more(self, request: Request) -> None:
        """This step starts to compute a request."""
        self.ledger.cache.expect(self._chain(request), request.computed_tokens)

    def publish(self, request: Request) -> None:
        """A block of it has been filled: full blocks may be hit from now on."""
        self.ledger.publish(_table(request), self._chain(request), request.computed_tokens)

    # -- Blocks come -----------------------------------------------------------------------------------------

    def fresh_blocks(self, request: Request) -> int:
        """Blocks that must be available for it to run, beyond those it finds."""
        if request.parked is not None:
            found = self.ledger.survivors(request.parked.incarnations)
        else:
            found = self._prefix(request)
        revived = sum(self.ledger.cache.is_evictable(block) for block in found)
        return max(0, self._wanted_blocks(request) - len(found)) + revived

    def has_room(self, request: Request, running: list[Request]) -> bool:
        """Whether it may start now, beside ``running``, and probably stay."""
        if not self.fits(request):
            return False
        if request.preemptions and not self.preemptor.may_return(self.fresh_blocks(request), len(running)):
            return False
        return not running or not self.is_overcommitted or self._is_below_peak(request, running)

    def fits(self, request: Request) -> bool:
        """Whether its blocks are there now."""
        return self.is_settled(request) and self.fresh_blocks(request) <= self.ledger.available_blocks

    def is_settled(self, request: Request) -> bool:
        """Whether nothing is under way that it would have to wait for before it starts."""
        return request.parked is None or self.host.is_settled(request.parked)

    def open(self, request: Request, step: int) -> None:
        """Give it its table; what the cache or the host holds of it counts as computed."""
        if request.parked is not None:
            wanted = self._wanted_blocks(request)
            request.table, copies = self.host.swap_in(request.parked, wanted, step)
            request.parked = None
            self._swaps_in += [(step, copy) for copy in copies]
            self._last_swap_step = step
            return
        prefix = self._prefix(request)
        request.table = self.ledger.open_table(self._wanted_blocks(request), prefix)
        request.computed_tokens = len(prefix) * self.ledger.block_size
        if request.preemptions:
            self.regained_tokens += request.computed_tokens
        else:
            self.looked_up_tokens += request.known_tokens
            self.hit_tokens += request.computed_tokens

    def is_arriving(self, request: Request) -> bool:
        """Whether its blocks are still being filled from the host, so that no step may compute on them."""
        return request.table is not None and self.ledger.is_arriving(request.table)

    def release(self, request: Request) -> None:
        """It ended: everything it holds comes back."""
        if request.table is not None:
            self.ledger.close_table(request.table)
            request.table = None
        if request.parked is not None:
            self.host.drop(request.parked)
            request.parked = None

    # -- Blocks go -------------------------------------------------------------------------------------------

    def lacking(self, request: Request) -> int:
        """Blocks beyond its reservation that its next token takes."""
        table = _table(request)
        held = len(table.blocks) + table.reserved_blocks
        return max(0, self.ledger.blocks_for(request.computed_tokens + 1) - held)

    def kept_tokens(self, request: Request) -> int:
        """Of its computed tokens, those that stay when it gives way: others hold their blocks, too.

        What only the cache keeps does not count: it is the room that somebody needs.
        """
        return 0 if request.table is None else self.ledger.kept_blocks(request.table) * self.ledger.block_size

    def grow(self, request: Request) -> None:
        """Take the block for its next token, beyond its reservation; no step touches it yet."""
        self.ledger.extend(_table(request), request.computed_tokens + 1)

    def load(self) -> dict[str, float]:
        """Counts for metrics."""
        return {
            "kv_blocks_reserved": float(self.ledger.reserved_blocks),
            "kv_blocks_cached": float(self.ledger.cached_blocks),
            "host_slots_used": float(self.host.used_slots),
            "preemption_lost_tokens": float(self.lost_tokens),
            "preemption_regained_tokens": float(self.regained_tokens),
            "prefix_lookup_tokens": float(self.looked_up_tokens),
            "prefix_hit_tokens": float(self.hit_tokens),
            **{f"preemptions_{mode.value}": float(count) for mode, count in self.preemptions.items()},
        }

    @property
    def coming_blocks(self) -> int:
        """Blocks that come free by themselves once copies under way are complete."""
        return self.ledger.swapping_blocks + self.ledger.limbo_blocks

    def choose(
        self,
        candidates: list[Candidate],
        blocks: int,
        *,
        sequences: int = 0,
        above_priority: int = -1,
        load: float = 1.0,
        step_seconds: float = 0.0,
    ) -> tuple[Preemption, ...]:
        """Who of the candidates gives way for so many blocks and places; empty: nobody."""
        _, b, _, q = self._cost.mixed.coefficients
        if not self._cost.mixed.is_trusted:
            b = max(b, UNKNOWN_TOKEN_SECONDS)
        costs = replace(self._costs, seconds_per_token=b, seconds_per_token_squared=q, load=load)
        return self.preemptor.choose(
            candidates,
            blocks,
            costs,
            free_slots=self.host.free_slots,
            needed_sequences=sequences,
            above_priority=above_priority,
            step_seconds=step_seconds,
        )

    def give_way(self, preemption: Preemption, step: int) -> None:
        """Take a request's blocks as chosen; it has no table afterwards."""
        request = preemption.request
        table = _table(request)
        request.preemptions += 1
        self.preemptions[preemption.mode] += 1
        if preemption.mode is Mode.SWAP:
            request.parked, copies = self.host.swap_out(table, request.computed_tokens, step)
            self._swaps_out += [(step, copy) for copy in copies]
            self._last_swap_step = step
        else:
            self.lost_tokens += request.computed_tokens
            self.ledger.close_table(table)
            request.computed_tokens = 0
        request.table = None

    # -- Copies travel with plans ----------------------------------------------------------------------------

    @property
    def is_swapping(self) -> bool:
        """Whether a swap is planned or under way."""
        return self._last_swap_step > self._copied_step

    def with_copies(self, plan: StepPlan, after: int = 0) -> StepPlan:
        """The plan with all copies that no applied plan has carried yet, so a dropped plan loses none.

        ``after``: the step under way, which carries its own.
        """
        if not (self._swaps_out or self._swaps_in):
            return plan
        for step, _ in (*self._swaps_out, *self._swaps_in):
            if step > after:
                self._carried[step] = plan.step
        return replace(
            plan,
            swaps_out=tuple([copy for step, copy in self._swaps_out if step > after]),
            swaps_in=tuple([copy for step, copy in self._swaps_in if step > after]),
        )

    def complete(self, plan: StepPlan, copied_step: int | None) -> None:
        """The plan was executed; swaps of plans up to ``copied_step`` (None: this one's too) are done."""
        if self._swaps_out or self._swaps_in:
            self._swaps_out = [entry for entry in self._swaps_out if entry[0] > plan.step]
            self._swaps_in = [entry for entry in self._swaps_in if entry[0] > plan.step]
        copied = plan.step if copied_step is None else copied_step
        # A swap that a later plan carries again (the first was dropped, or its result is late) is done once
        # more with that one: until then nobody may touch its blocks and slots.
        if self._carried:
            self._carried = {step: carrier for step, carrier in self._carried.items() if carrier > copied}
            copied = min(self._carried, default=copied + 1) - 1
        self._copied_step = max(self._copied_step, copied)
        self.ledger.complete(plan.step, copied)
        self.host.complete(copied)

    # -- Parts -----------------------------------------------------------------------------------------------

    def _wanted_blocks(self, request: Request) -> int:
        if self.is_overcommitted and not self.preemptor.is_pinned(request):
            return self.ledger.blocks_for(request.known_tokens + 1)
        return self.ledger.blocks_for(request.longest_tokens)

    def _is_below_peak(self, request: Request, running: list[Request]) -> bool:
        estimate = PeakEstimate([self._need(other, len(_table(other).blocks)) for other in running])
        current, remaining = self._need(request, self.ledger.blocks_for(request.known_tokens))
        return estimate.with_one_more(current, remaining) <= self.ledger.block_count

    def _need(self, request: Request, blocks: int) -> tuple[float, float]:
        """(blocks now, blocks it will still take) of a request by what its tenant's answers usually get."""
        left = self.quantiles.remaining_tokens(
            request.spec.tenant, request.generated_tokens, request.spec.max_tokens
        )
        needed = (request.known_tokens + left) / self.ledger.block_size
        return float(blocks), max(0.0, math.ceil(needed) - blocks)

    def _chain(self, request: Request) -> HashChain:
        if request.chain is None:
            request.chain = self.ledger.cache.chain(request.tokens, request.spec.tenant)
        return request.chain

    def _prefix(self, request: Request) -> tuple[int, ...]:
        return self.ledger.cache.match(self._chain(request), request.known_tokens)


def _table(request: Request) -> BlockTable:
    if request.table is None:
        raise InvariantError(f"{request.key} has no block table")
    return request.table
