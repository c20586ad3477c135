"""What a loaded model's device holds and copies: what its simulation has to know beside step times."""

from __future__ import annotations

from dataclasses import dataclass

from headway.engine.interfaces import Runner
from headway.engine.preemption import PreemptionCosts


@dataclass(frozen=True, slots=True)
class DeviceSizes:
    """KV blocks, and copies to host memory."""

    block_count: int
    block_size: int
    block_bytes: int
    host_bandwidth: float = 0.0
    """Bytes per second, out and in again on average; 0: it has no host memory to copy to."""
    copies_beside: bool = False

    @property
    def bytes_per_token(self) -> int:
        """Of its keys and values over all layers."""
        return self.block_bytes // self.block_size

    @classmethod
    def of(cls, runner: Runner, swaps: PreemptionCosts | None) -> DeviceSizes:
        """Of a runner, and what was measured of its copies."""
        bandwidth = 0.0
        if swaps is not None:
            bandwidth = 2 / (1 / swaps.out_bytes_per_second + 1 / swaps.in_bytes_per_second)
        return cls(
            runner.block_count,
            runner.block_size,
            runner.block_bytes,
            bandwidth,
            swaps is not None and swaps.overlap > 0.0,
        )
