"""The first steps of a loaded model, before anyone waits: they compile, record, and touch the weights."""

from __future__ import annotations

from collections.abc import Sequence

from headway.engine.interfaces import Runner
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling, StepPlan

DECODE_ROWS = (1, 2, 4, 8)
"""oneDNN generates code per row count; these are what a quiet service meets first."""


def warm_up(runner: Runner, *, decode_rows: Sequence[int] = DECODE_ROWS) -> None:
    """One prefill and one decode step for each count, through ``execute``; no request stays behind."""
    prompt = min(16, runner.block_size, runner.max_model_len)
    _step(runner, [(0,) * prompt])
    for rows in decode_rows:
        _step(runner, [(0,)] * rows)


def _step(runner: Runner, chunks: list[tuple[int, ...]]) -> None:
    """All chunks write to the first block: contents do not matter here."""
    keys = [RequestKey(f"warm-up-{index}", 0) for index in range(len(chunks))]
    sampling = Sampling(temperature=0.0)
    runner.execute(
        StepPlan(
            step=0,
            chunks=tuple(
                Chunk(key, start=0, token_ids=tokens, block_table=(0,), samples=True)
                for key, tokens in zip(keys, chunks, strict=True)
            ),
            admitted=tuple(
                Admitted(key, tokens, (), sampling) for key, tokens in zip(keys, chunks, strict=True)
            ),
        )
    )
    runner.execute(StepPlan(step=0, chunks=(), released=tuple(keys)))
