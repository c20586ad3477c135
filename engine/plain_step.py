"""The step that most steps are: everybody who is here decodes, and nobody needs anything for it.

One look at each request answers what takes the planner a dozen questions. Between two steps the pass reads
all weights and so pushes Python out of the processor's caches: planning costs by how much code it touches.
"""

from __future__ import annotations

from collections.abc import Mapping

from headway.engine.limits import StepLimits
from headway.engine.memory import Memory
from headway.engine.policy import Policy
from headway.engine.request import Request


def is_plain(running: Mapping[str, Request], policy: Policy, memory: Memory, limits: StepLimits) -> bool:
    """Whether all that the next step can hold is one token of each running request, in their order.

    So nobody waits, is held, may be left out because its token is not due, or lacks a block; nobody has to
    take turns; and nothing is claimed or copied.
    """
    if policy.waiting or len(running) > limits.max_sequences or memory.is_swapping or memory.is_claimed:
        return False
    size = memory.ledger.block_size
    for request in running.values():
        table, computed = request.table, request.computed_tokens
        if table is None or request.is_held or request.due_seconds is not None:
            return False
        if len(request.tokens) - computed != 1:
            return False
        if computed >= (len(table.blocks) + table.reserved_blocks) * size:
            return False
    return True
