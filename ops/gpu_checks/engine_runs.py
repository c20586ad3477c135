"""Many requests through a real engine, to their ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeAlias

from gpu_checks.random_model import AnyVocabulary

from headway.engine.engine import Engine
from headway.engine.interfaces import Runner
from headway.engine.limits import StepLimits
from headway.engine.memory_settings import MemorySettings
from headway.engine.policy import POLICIES
from headway.engine.values import RequestSpec

Answers: TypeAlias = dict[str, tuple[int, ...]]
"""Tokens by request."""

MIXING = StepLimits(max_step_tokens=64, max_sequences=8, min_chunk_tokens=8)
"""Chunked prefills and decodes in every step."""


def answers_of(
    runner: Runner,
    wanted: Sequence[RequestSpec],
    *,
    limits: StepLimits = MIXING,
    looks_ahead: bool = False,
    memory: MemorySettings | None = None,
    counts: dict[str, float] | None = None,
) -> Answers:
    """What they are answered; ``counts`` gets the engine's own."""
    engine = Engine(
        runner,
        AnyVocabulary(),
        limits=limits,
        policy=POLICIES["fcfs"](),
        memory=memory or MemorySettings(),
        looks_ahead=looks_ahead,
    )
    answers: dict[str, list[int]] = {spec.request_id: [] for spec in wanted}
    for spec in wanted:
        engine.add(spec)
    while engine.has_work:
        for output in engine.step(time.perf_counter()):
            answers[output.key.request_id] += output.token_ids
    engine.check_books()
    engine.close()
    if counts is not None:
        counts.update(engine.load.extra)
    return {name: tuple(tokens) for name, tokens in answers.items()}
