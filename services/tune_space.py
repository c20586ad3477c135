"""What ``headway tune`` chooses among: a small grid of settings that a worker has options for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from headway.services.settings import WorkerSettings
from headway.services.simulation_report import Limits

BATCH_TOKENS: Final = (64, 128, 256, 512, 1024, 2048)
"""Most new tokens of a step: also the longest chunk of a prompt."""
SEQUENCES: Final = (4, 8, 16, 32, 64, 128)
BLOCKS: Final = (16, 32)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting of all knobs."""

    max_batch_tokens: int
    max_sequences: int
    block_size: int
    is_timed: bool
    """Steps end in time for the limits (--ttft, --tpot); else they are bounded by tokens and a fixed time."""

    def apply(self, worker: WorkerSettings, limits: Limits) -> WorkerSettings:
        """The worker with these settings."""
        return replace(
            worker,
            max_batch_tokens=self.max_batch_tokens,
            max_sequences=self.max_sequences,
            block_size=self.block_size,
            ttft_seconds=limits.ttft_seconds if self.is_timed else None,
            tpot_seconds=limits.tpot_seconds if self.is_timed else None,
        )

    def options(self, limits: Limits) -> dict[str, str]:
        """Options of ``headway worker`` with their values."""
        timed = {"--ttft": _duration(limits.ttft_seconds), "--tpot": _duration(limits.tpot_seconds)}
        return {
            "--max-batch-tokens": str(self.max_batch_tokens),
            "--max-sequences": str(self.max_sequences),
            "--block-size": str(self.block_size),
        } | (timed if self.is_timed else {})


def as_arguments(options: Mapping[str, str]) -> str:
    """To paste behind ``headway worker``."""
    return " ".join(f"{name} {value}" for name, value in options.items())


def as_environment(options: Mapping[str, str]) -> str:
    """To paste before ``headway up``, which hands its environment to its workers."""
    return " ".join(
        f"HEADWAY_{name.removeprefix('--').replace('-', '_').upper()}={value}"
        for name, value in options.items()
    )


def current(worker: WorkerSettings) -> Candidate:
    """A worker as it is without tuning: no limits given, steps not timed."""
    return Candidate(worker.max_batch_tokens, worker.max_sequences, worker.block_size, is_timed=False)


def grid(worker: WorkerSettings, kv_tokens: int) -> list[Candidate]:
    """All settings that can work, the worker's own first; no more places than blocks of KV."""
    found = {current(worker): None}
    for tokens, sequences, block, is_timed in product(BATCH_TOKENS, SEQUENCES, BLOCKS, (False, True)):
        if sequences <= tokens and sequences * block <= kv_tokens:
            found[Candidate(tokens, sequences, block, is_timed)] = None
    return list(found)


def _duration(seconds: float) -> str:
    return f"{1e3 * seconds:g}ms" if seconds < 1 else f"{seconds:g}s"
