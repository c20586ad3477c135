"""A worker's order and limits by the policy's name: ``fair`` for services, the others for comparison.

``static`` and ``dynamic`` are batching as it was before continuous batching: a batch runs until its last
answer is complete. ``fixed-chunks`` is what most engines do: first come first served, decodes in every step,
prefill up to a fixed number of tokens (Sarathi-Serve's rule). These three know no time budget.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final, Literal, get_args

from headway.services.errors import UsageError
from headway.services.fair_settings import UNSET, FairSettings

if TYPE_CHECKING:
    from headway.engine.limits import StepLimits
    from headway.engine.policy import Policy

PolicyName = Literal["fair", "fcfs", "priority", "static", "dynamic", "fixed-chunks"]
POLICY_NAMES: Final[tuple[str, ...]] = get_args(PolicyName)
FIXED_CHUNKS: Final = "fixed-chunks"
BATCH_WINDOW_SECONDS: Final = 0.05
"""How long a dynamic batch waits to fill unless asked otherwise."""
_BATCHES: Final = frozenset({"static", "dynamic"})
_UNTIMED: Final = frozenset({*_BATCHES, FIXED_CHUNKS})
_NO_TIME_LIMIT: Final = 1e9


def make_policy(
    name: str,
    fair: FairSettings = UNSET,
    *,
    max_sequences: int = 1,
    batch_window_seconds: float | None = None,
) -> Policy:
    """A policy by its name; raises UsageError for settings that are not its own, or make no sense.

    A dynamic batch starts with ``max_sequences``, or when its oldest has waited ``batch_window_seconds``.
    """
    from headway.engine.fair import FairPolicy
    from headway.engine.policy import POLICIES, DynamicBatch

    given = {setting: value for setting, value in asdict(fair).items() if value is not None}
    if given and name != "fair":
        raise UsageError(
            f"--age-limit, --quantum and --patience are the fair policy's, which {name} is not",
            hint="--policy fair, or leave them out",
        )
    if batch_window_seconds is not None and name != "dynamic":
        raise UsageError(
            f"--batch-window is for dynamic batches, which {name} does not make",
            hint="--policy dynamic, or leave it out",
        )
    if name == "dynamic":
        window = BATCH_WINDOW_SECONDS if batch_window_seconds is None else batch_window_seconds
        return DynamicBatch(batch_size=max_sequences, delay_seconds=window)
    try:
        return FairPolicy(**given) if given else POLICIES["fcfs" if name == FIXED_CHUNKS else name]()
    except ValueError as error:
        raise UsageError(str(error), hint="--age-limit, --quantum, --patience") from None


def is_timed(name: str) -> bool:
    """Whether its steps end in time for the tokens that are due."""
    return name not in _UNTIMED


def limits_for(name: str, limits: StepLimits) -> StepLimits:
    """The limits without time budgets where the policy knows none."""
    if is_timed(name):
        return limits
    return replace(limits, objectives=(), max_step_seconds=_NO_TIME_LIMIT, max_gap_seconds=_NO_TIME_LIMIT)


def jobs_ahead(name: str, max_sequences: int) -> int:
    """Jobs that a worker claims beyond its places: a whole batch, or enough to refill a place at once."""
    return max_sequences if name in _BATCHES else max(1, max_sequences // 8)
