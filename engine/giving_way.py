"""How running requests give way: who is asked, in which mode they go, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from headway.engine.blocks import BlockLedger
from headway.engine.detours import Detours
from headway.engine.errors import InvariantError
from headway.engine.host_pool import HostPool
from headway.engine.preemption import Candidate, Mode, Preemption, Preemptor
from headway.engine.request import Request
from headway.engine.shipments import Shipments
from headway.engine.swap_costs import SwapCosts
from headway.engine.values import BlockCopy, CopyTime


class GivingWay:
    """Does what a ``Preemptor`` chooses, at prices that are kept current, and follows it to the end."""

    def __init__(
        self,
        ledger: BlockLedger,
        host: HostPool,
        shipments: Shipments,
        preemptor: Preemptor,
        costs: SwapCosts,
    ) -> None:
        self._ledger = ledger
        self._host = host
        self._shipments = shipments
        self._preemptor = preemptor
        self.costs = costs
        self.preemptions = dict.fromkeys(Mode, 0)
        """How often each mode was chosen."""
        self.deferred = 0
        """How often it was cheaper to wait a step for room that came by itself."""
        self.lost_tokens = 0
        """Computed tokens that were thrown away."""
        self.detours = Detours()

    def choose(
        self,
        candidates: list[Candidate],
        blocks: int,
        *,
        sequences: int = 0,
        kept: AbstractSet[int] = frozenset(),
        above_priority: int = -1,
        step_seconds: float = 0.0,
    ) -> tuple[Preemption, ...]:
        """Who of the candidates gives way for so many blocks, none of ``kept``, and places; or nobody."""
        return self._preemptor.choose(
            candidates,
            blocks,
            self.costs.now,
            free_slots=self._host.free_slots,
            needed_sequences=sequences,
            kept=kept,
            above_priority=above_priority,
            step_seconds=step_seconds,
        )

    def give_way(self, preemption: Preemption, step: int) -> None:
        """Take a request's blocks as chosen; it has no table afterwards."""
        request = preemption.request
        table = request.table
        if table is None:
            raise InvariantError(f"{request.key} gives way without a block table")
        used, tokens = self._ledger.used_blocks, request.computed_tokens
        copies: tuple[BlockCopy, ...] = ()
        request.preemptions += 1
        self.preemptions[preemption.mode] += 1
        if preemption.mode is Mode.SWAP:
            request.parked, copies = self._host.swap_out(table, tokens, step)
            self._shipments.swap_out(copies, step)
        else:
            self.lost_tokens += tokens
            self._ledger.close_table(table)
        request.table = None
        self.detours.leave(
            preemption,
            step,
            copied_blocks=len(copies),
            block_bytes=self.costs.current.block_bytes,
            kv_blocks=(self._ledger.block_count, used, self._ledger.used_blocks),
        )
        if not copies:
            request.computed_tokens = 0

    def come_back(self, request: Request, blocks: int, step: int) -> None:
        """Give a swapped request a table with its KV, and room to grow to ``blocks``."""
        if request.parked is None:
            raise InvariantError(f"{request.key} comes back, but is not in host memory")
        request.table, copies = self._host.swap_in(request.parked, blocks, step)
        request.parked = None
        self._shipments.swap_in(copies, step)
        self.detours.turn_back(request, step, len(copies))

    def land(self, step: int, copied_step: int, times: Sequence[CopyTime]) -> None:
        """A step ended, with swaps up to ``copied_step`` complete; ``times`` teach what swaps cost."""
        for time in times:
            self.costs.observe(time)
        if self.detours:
            self.detours.land(step, copied_step, times)

    def load(self) -> dict[str, float]:
        """Counts for metrics; the seconds are of those that came back."""
        figures = {
            "preemptions_deferred": float(self.deferred),
            "preemption_lost_tokens": float(self.lost_tokens),
        }
        for mode, spent in self.detours.spent.items():
            figures[f"preemptions_{mode.value}"] = float(self.preemptions[mode])
            figures[f"{mode.value}_predicted_seconds"] = spent.predicted_seconds
            figures[f"{mode.value}_real_seconds"] = spent.real_seconds
        return figures
