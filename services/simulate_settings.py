"""What ``headway simulate`` is asked; light to import: the command line reads its defaults from here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.services.fair_settings import UNSET, FairSettings
from headway.services.hardware import Coefficients

Process = Literal["trace", "poisson", "burst"]
PreemptionChoice = Literal["cost", "swap", "recompute"]
"""How a preempted request gives way: by cost, or always the same way for comparison."""


@dataclass(frozen=True, slots=True)
class SimulateSettings:
    """What is simulated. Durations are seconds, rates per second."""

    policies: tuple[str, ...] = ("fair",)
    fair: FairSettings = UNSET
    """Of the fair policy; the others that it is compared with have none of it."""
    batch_window_seconds: float | None = None
    """Of the dynamic policy; None: 50 ms."""
    trace: Path | None = None
    arrivals: Process | None = None
    """None: the trace as recorded if there is one, else Poisson."""
    rate: float = 1.0
    rate_scale: float = 1.0
    duration: float | None = None
    burstiness: float = 4.0
    prompt_tokens: int = 512
    answer_tokens: int = 128
    max_tokens: int | None = None
    """What clients ask for; None: the longest answer that comes."""
    tenants: Path | None = None
    seed: int = 0
    hardware: str = "h100"
    model: str = "llama-3.1-8b"
    tensor_parallel: int | None = None
    coefficients: Coefficients | None = None
    calibration: Path | None = None
    kv_tokens: int | None = None
    host_kv_tokens: int = 0
    """Tokens that host memory takes from preempted requests; 0: nothing is swapped."""
    host_bandwidth: float | None = None
    """Bytes per second and direction; None: the GPU's."""
    is_overcommitted: bool = False
    """Admit by the usual length of answers, and preempt when that was wrong."""
    preemption: PreemptionChoice = "cost"
    block_size: int = 16
    max_sequences: int = 256
    max_batch_tokens: int = 2048
    ttft_seconds: float = 1.0
    tpot_seconds: float = 0.05
    timed_classes: int = 3
    """Classes, best first, whose steps end in time for the limits; a worker with --ttft, --tpot has one."""
    max_step_seconds: float = 0.5
    """Predicted time of one step at most (not with fixed chunks)."""
