"""How a worker shows itself to the fleet."""

from __future__ import annotations

import os
import socket
from typing import Final

from headway import __version__
from headway.engine.values import EngineLoad
from headway.queueing.worker_card import WorkerCard
from headway.services.settings import WorkerSettings

_NOTHING: Final = EngineLoad(0, 0, 0, 0, 0, 0, 0.0)
_TORCH: Final = "torch ("
_CHOSEN: Final = ("torch was asked for", "they are for CPUs")
"""Reasons for torch that nobody need be told of."""


def fell_back(computation: str) -> bool:
    """Whether torch computes where native kernels should: several times slower, and nobody asked for it."""
    return computation.startswith(_TORCH) and not any(reason in computation for reason in _CHOSEN)


def worker_card(
    settings: WorkerSettings,
    model: str,
    state: str,
    *,
    created_unix: int,
    max_model_len: int = 0,
    tool_format: str = "",
    reasoning_format: str = "",
    computation: str = "",
    load: EngineLoad = _NOTHING,
    step_age_seconds: float = 0.0,
    tokens_per_second: float = 0.0,
) -> WorkerCard:
    """The card of a worker in a state; without the engine's figures while it is starting."""
    return WorkerCard(
        worker_id=settings.worker_id,
        model=model,
        state=state,
        pid=os.getpid(),
        host=socket.gethostname(),
        version=__version__,
        max_model_len=max_model_len,
        max_running=settings.max_sequences,
        running=load.running,
        waiting=load.waiting,
        kv_used_fraction=round(load.kv_blocks_used / max(1, load.kv_blocks_total), 4),
        step_age_seconds=round(step_age_seconds, 3),
        tokens_per_second=round(tokens_per_second, 1),
        created_unix=created_unix,
        tool_format=tool_format,
        reasoning_format=reasoning_format,
        computation=computation,
    )
