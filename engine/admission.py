"""Which waiting requests start in a step, and what each started prefill computes of it."""

from __future__ import annotations

from headway.engine.blocks import BlockLedger
from headway.engine.limits import StepLimits
from headway.engine.policy import Policy
from headway.engine.request import Request
from headway.engine.shares import floor_chunk, share_budget


def start_waiting(
    policy: Policy, ledger: BlockLedger, limits: StepLimits, active: list[Request], budget: int
) -> list[Request]:
    """Give block tables to the waiting requests that start now, in the policy's order, and return them.

    - A start never takes the floor chunk from a prefill that has started (``active`` are all running requests
      of the step, ``budget`` what its decodes leave).
    - Blocks for the longest possible answer are reserved, so nothing started ever has to stop for memory.
    - Bounded skipping: a request whose blocks do not fit lets those behind it pass, at most ``max_passes``
      times; from then on nothing behind it starts while anything runs, so blocks come free until it fits.
      While nothing can run (held requests sit on the blocks) waiting would not help: others may still pass.
    """
    started: list[Request] = []
    if budget < 1 or not ledger.available_blocks:
        return started
    floor = floor_chunk(budget, limits.min_chunk_tokens)
    promised = sum(min(floor, request.pending_tokens) for request in active if request.pending_tokens != 1)
    passed: list[Request] = []
    for request in policy.candidates():
        wanted = min(floor, request.pending_tokens)
        if len(active) + len(started) >= limits.max_sequences or (promised and promised + wanted > budget):
            break
        blocks = ledger.blocks_for(request.longest_tokens)
        if blocks <= ledger.available_blocks:
            request.table = ledger.open_table(blocks)
            started.append(request)
            promised += wanted
            for earlier in passed:
                earlier.passes += 1
        else:
            passed.append(request)
        something_runs = bool(active or started)
        if something_runs and (
            len(passed) >= limits.max_looks or any(earlier.passes >= limits.max_passes for earlier in passed)
        ):
            break
    return started


def grant_prefills(
    policy: Policy, limits: StepLimits, prefills: list[Request], budget: int
) -> list[tuple[Request, int]]:
    """How many tokens of each prefill this step computes, in the policy's order; none: left out."""
    ordered = policy.sort(prefills) if len(prefills) > 1 else prefills
    floor = floor_chunk(budget, limits.min_chunk_tokens)
    grants = share_budget([request.pending_tokens for request in ordered], budget, floor)
    return [(request, tokens) for request, tokens in zip(ordered, grants, strict=True) if tokens]
