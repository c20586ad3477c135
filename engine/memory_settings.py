"""How an engine uses its memory: cache, overcommit, and what swapping costs."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.engine.blocks import BlockLedger
from headway.engine.cost_model import CostModel
from headway.engine.host_pool import HostPool
from headway.engine.interfaces import Runner
from headway.engine.memory import RECOMPUTE_ONLY, Memory
from headway.engine.overcommit import OutputQuantiles
from headway.engine.preemption import PreemptionCosts, PreemptionLimits
from headway.engine.prefix_cache import PrefixCache


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """The operator's choices. The defaults share nothing and never preempt for memory."""

    has_prefix_cache: bool = False
    shared_prefixes: tuple[tuple[int, ...], ...] = ()
    """Beginnings of prompts whose blocks all tenants may share; all else is salted by the tenant."""
    weights_version: str = ""
    is_overcommitted: bool = False
    """Admit by the peak that answers of usual length need, not by the longest; preempt when it was wrong."""
    answers_to_know: int = 8
    """Answers of a tenant to see before anything but the longest is expected of it."""
    costs: PreemptionCosts = RECOMPUTE_ONLY
    """Bytes and bandwidths of a swap; used where the runner has host slots."""
    preemption: PreemptionLimits = field(default_factory=PreemptionLimits)

    def build(self, runner: Runner, cost: CostModel) -> Memory:
        """The memory side of a scheduler for this runner."""
        cache = PrefixCache(
            runner.block_size,
            is_enabled=self.has_prefix_cache,
            weights_version=self.weights_version,
            shared_prefixes=self.shared_prefixes,
        )
        ledger = BlockLedger(runner.block_count, runner.block_size, cache)
        return Memory(
            ledger,
            cost,
            is_overcommitted=self.is_overcommitted,
            host=HostPool(ledger, runner.host_slots),
            costs=self.costs,
            limits=self.preemption,
            quantiles=OutputQuantiles(min_samples=self.answers_to_know),
        )
