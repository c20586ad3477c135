"""Finding the request at fault when a step fails, so that one bad request never ends another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from headway.engine.errors import InvariantError, RequestError
from headway.engine.values import Admitted, RequestKey, Sampled, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class Isolated:
    """What came of a failed step's chunks, each run alone."""

    result: StepResult
    failures: dict[RequestKey, str]
    """Requests at fault, with a message for their owners."""


def execute_isolated(
    execute: Callable[[StepPlan], StepResult],
    plan: StepPlan,
    announce: Callable[[RequestKey], Admitted | None],
    error: Exception,
) -> Isolated:
    """Run the chunks of a failed plan one by one; raises ``error`` when every one fails.

    Safe because KV writes are idempotent. The failed step may have left the runner's state of a request half
    updated, so each is forgotten and announced afresh, by now the token of a placeholder is known, and
    nothing is guessed. If all fail the device is broken and the jobs have to move on, unless the runner
    itself blames a request with a RequestError.
    """
    if isinstance(error, InvariantError):
        raise error
    sampled: list[Sampled] = []
    failures: dict[RequestKey, str] = {}
    tried = blamed = 0
    elapsed_seconds = 0.0
    # What was executed last knows how far the swaps of earlier plans are: with nothing executed, nobody does.
    copied_step: int | None = 0
    running = {chunk.key for chunk in plan.chunks}
    if plan.has_copies:
        # Once more and before any chunk: the failed step may have come to none of them, or to all.
        copied_step = execute(replace(plan, chunks=(), admitted=(), released=())).copied_step
    forgotten = tuple(key for key in plan.released if key not in running)
    for chunk in plan.chunks:
        admitted = announce(chunk.key)
        if admitted is None:
            continue
        tried += 1
        released = (*forgotten, chunk.key)
        known = (*admitted.prompt_token_ids, *admitted.generated_token_ids)
        tokens = known[chunk.start : chunk.start + len(chunk.token_ids)]
        named = chunk._replace(token_ids=tokens, draft_tokens=0)
        alone = StepPlan(step=plan.step, chunks=(named,), admitted=(admitted,), released=released)
        try:
            result = execute(alone)
        except Exception as failure:
            failures[chunk.key] = str(failure) or type(failure).__name__
            blamed += isinstance(failure, RequestError)
        else:
            sampled.extend(result.sampled)
            elapsed_seconds += result.elapsed_seconds
            copied_step = result.copied_step
    # Where all requests of the plan have ended meanwhile nothing was tried, and that proves nothing.
    if len(failures) == tried and blamed == 0 and (tried or not plan.chunks):
        raise error
    return Isolated(StepResult(plan.step, tuple(sampled), elapsed_seconds, copied_step), failures)
