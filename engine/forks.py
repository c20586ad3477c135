"""Requests that branch off others: several answers to one prompt, whose KV is computed once.

    parent   [0 ............ prompt)[prompt .... computed)        goes on in its own blocks
    child    [0 .... prompt - 1)                                  full blocks shared, the partial one copied

The child computes the last token of the prompt itself, since that one's logits choose its first token. No
prefix cache is needed, and nobody waits for what may never come: without its parent it starts as any request.
"""

from __future__ import annotations

from headway.engine.blocks import BlockLedger
from headway.engine.errors import InvariantError
from headway.engine.request import Request
from headway.engine.shipments import Shipments


class Forks:
    """Starts children on their parents' blocks."""

    def __init__(self, ledger: BlockLedger, shipments: Shipments) -> None:
        self._ledger = ledger
        self._shipments = shipments
        self.shared_tokens = 0
        """What children took over in all."""

    def tokens(self, child: Request) -> int:
        """What a waiting request would take over if it started now; 0: it starts as any.

        The parent's prompt has to be computed, and not to be on its way from the host.
        """
        parent = child.parent
        if parent is None or parent.table is None or parent.computed_tokens < parent.prompt_tokens:
            return 0
        if self._ledger.is_arriving(parent.table) or parent.table.resets != self._ledger.cache.resets:
            return 0
        return min(parent.prompt_tokens, child.known_tokens - 1)

    def blocks(self, child: Request) -> tuple[int, ...]:
        """The full blocks that it would share with its parent if it started now."""
        tokens, parent = self.tokens(child), child.parent
        if not tokens or parent is None or parent.table is None:
            return ()
        return parent.table.blocks[: tokens // self._ledger.block_size]

    def is_worth_waiting(self, child: Request) -> bool:
        """Whether its parent is just computing the prompt; held, or waiting itself, it may never be ready."""
        parent = child.parent
        if parent is None or parent.table is None or parent.is_held:
            return False
        return parent.computed_tokens < parent.prompt_tokens or self._ledger.is_arriving(parent.table)

    def start(self, child: Request, blocks: int, step: int) -> None:
        """Give it its table, with room to grow to ``blocks``; InvariantError where ``tokens`` says 0."""
        tokens, parent = self.tokens(child), child.parent
        if not tokens or parent is None or parent.table is None:
            raise InvariantError(f"{child.key} has nothing to branch off")
        child.table, copy = self._ledger.fork_table(parent.table, tokens, blocks, step)
        if copy is not None:
            self._shipments.copy(copy, step)
        child.computed_tokens = tokens
        self.shared_tokens += tokens
