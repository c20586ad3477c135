"""The memory side of the scheduler: how a request gets its blocks, gives way, and comes back.

    waiting ──open──► running ──give_way──► waiting ──open──► …   recompute: without KV · swap: KV on the host

Reserved in full, a started request never lacks a block. Overcommitted, only its known tokens are reserved;
when the estimate was wrong somebody gives way, and who did so too often comes back reserved in full.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from headway.engine.block_table import BlockTable
from headway.engine.blocks import BlockLedger
from headway.engine.cost_model import CostModel
from headway.engine.errors import InvariantError
from headway.engine.forks import Forks
from headway.engine.giving_way import GivingWay
from headway.engine.host_pool import HostPool
from headway.engine.overcommit import OutputQuantiles, PeakEstimate
from headway.engine.preemption import Mode, PreemptionCosts, PreemptionLimits, Preemptor
from headway.engine.prefix_cache import HashChain
from headway.engine.request import Request
from headway.engine.shipments import Shipments
from headway.engine.swap_costs import SwapCosts
from headway.engine.values import StepPlan, StepResult

RECOMPUTE_ONLY = PreemptionCosts(block_bytes=1.0, out_bytes_per_second=1e-9, in_bytes_per_second=1e-9)
"""Without a host pool nothing is copied."""


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
        self._preemptor = Preemptor(ledger, limits or PreemptionLimits())
        self.quantiles = quantiles or OutputQuantiles()
        self.looked_up_tokens = 0
        """Known tokens of requests at their first start."""
        self.hit_tokens = 0
        """Of those, what the prefix cache held."""
        self.regained_tokens = 0
        """What it held of requests that come back from a preemption: no hits, the work was ours before."""
        self.is_overcommitted = is_overcommitted
        self._claimant: Request | None = None
        """Who waits for the blocks that others are swapped out of for it: nobody else takes them."""
        self._shipments = Shipments()
        self.forks = Forks(ledger, self._shipments)
        self.giving_way = GivingWay(
            ledger, self.host, self._shipments, self._preemptor, SwapCosts(costs, cost)
        )

    # -- The prefix cache ------------------------------------------------------------------------------------

    def cached_tokens(self, request: Request) -> int:
        """How much of a waiting request's KV is there already: cached, or parked on the host."""
        if request.parked is not None:
            return request.parked.tokens
        return self._forked_tokens(request) or len(self._prefix(request)) * self.ledger.block_size

    def is_expected(self, request: Request) -> bool:
        """Whether another request is just computing what this one needs next."""
        if request.parked is not None or self._forked_tokens(request):
            return False
        if self.forks.is_worth_waiting(request):
            return True
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
        found = self.found_blocks(request)
        revived = sum(self.ledger.cache.is_evictable(block) for block in found)
        return max(0, self._wanted_blocks(request) - len(found)) + revived

    def found_blocks(self, request: Request) -> tuple[int, ...]:
        """Blocks that hold its first tokens already: cached, or in the tables of others."""
        if request.parked is not None:
            return self.ledger.survivors(request.parked.incarnations)
        return self.forks.blocks(request) if self._forked_tokens(request) else self._prefix(request)

    def has_room(self, request: Request, running: list[Request]) -> bool:
        """Whether it may start now, beside ``running``, and probably stay."""
        if not self.fits(request):
            return False
        if self._claimant is request:
            # Others went for it already, and it was to start at once.
            return True
        if request.preemptions and not self._preemptor.may_return(
            self.fresh_blocks(request), len(running), self.spare_blocks(request)
        ):
            return False
        return not running or not self.is_overcommitted or self._is_below_peak(request, running)

    def fits(self, request: Request) -> bool:
        """Whether its blocks are there now."""
        return self.is_settled(request) and self.fresh_blocks(request) <= self.spare_blocks(request)

    def spare_blocks(self, request: Request | None = None) -> int:
        """Blocks that it may take now: the available ones, but for what others made room for."""
        available = self.ledger.available_blocks
        if self._claimant is None or self._claimant is request:
            return available
        return max(0, available - self.fresh_blocks(self._claimant))

    def claim(self, request: Request) -> None:
        """Others are swapped out for it: what comes free is its own until ``expire_claim``."""
        self._claimant = request

    @property
    def is_claimed(self) -> bool:
        """Whether somebody waits for blocks that were freed for it."""
        return self._claimant is not None

    def expire_claim(self) -> bool:
        """Whoever has a claim has had its chance, unless blocks are still being copied; whether one ended."""
        had = self._claimant is not None and not self.ledger.swapping_blocks
        if had:
            self._claimant = None
        return had

    def is_settled(self, request: Request) -> bool:
        """Whether nothing is under way that it would have to wait for before it starts."""
        return request.parked is None or self.host.is_settled(request.parked)

    def open(self, request: Request, step: int) -> None:
        """Give it its table; what the cache or the host holds of it counts as computed."""
        self._waive(request)
        if request.parked is not None:
            self.giving_way.come_back(request, self._wanted_blocks(request), step)
            return
        if self._forked_tokens(request):
            self.forks.start(request, self._wanted_blocks(request), step)
        else:
            prefix = self._prefix(request)
            request.table = self.ledger.open_table(self._wanted_blocks(request), prefix)
            request.computed_tokens = len(prefix) * self.ledger.block_size
        self.giving_way.detours.turn_back(request, step, 0)
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
        self.giving_way.detours.forget(request)
        self._waive(request)
        if request.table is not None:
            self.ledger.close_table(request.table)
            request.table = None
        if request.parked is not None:
            self.host.drop(request.parked)
            request.parked = None
        request.parent = None

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
            "preemption_regained_tokens": float(self.regained_tokens),
            "forked_tokens": float(self.forks.shared_tokens),
            "prefix_lookup_tokens": float(self.looked_up_tokens),
            "prefix_hit_tokens": float(self.hit_tokens),
            **self.giving_way.load(),
        }

    @property
    def preemptions(self) -> dict[Mode, int]:
        """How often each mode was chosen."""
        return self.giving_way.preemptions

    @property
    def coming_blocks(self) -> int:
        """Blocks that come free by themselves once copies under way are complete."""
        return self.ledger.swapping_blocks + self.ledger.limbo_blocks

    # -- Copies travel with plans ----------------------------------------------------------------------------

    @property
    def is_swapping(self) -> bool:
        """Whether a swap is planned or under way."""
        return self._shipments.is_swapping

    def with_copies(self, plan: StepPlan, after: int = 0) -> StepPlan:
        """The plan with all copies that travel with it. ``after``: the step under way, if this is ahead."""
        return self._shipments.load(plan, after)

    def land(self, plan: StepPlan, result: StepResult) -> None:
        """The plan was executed: its fences pass, and its copies teach what copies cost."""
        copied_step = self._shipments.land(plan, result.copied_step)
        self.ledger.complete(plan.step, copied_step)
        self.host.complete(copied_step)
        self.giving_way.land(plan.step, copied_step, result.copy_times)

    # -- Parts -----------------------------------------------------------------------------------------------

    def _forked_tokens(self, request: Request) -> int:
        """What it takes over of a parent; 0 where a prefix hit brings as much, or there is none to fork."""
        tokens = self.forks.tokens(request)
        return tokens if tokens > len(self._prefix(request)) * self.ledger.block_size else 0

    def _waive(self, request: Request) -> None:
        if self._claimant is request:
            self._claimant = None

    def _wanted_blocks(self, request: Request) -> int:
        if self.is_overcommitted and not self._preemptor.is_pinned(request):
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
