"""What this machine can do at best, measured with its vendor's libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from gpu_checks.timing import Stopwatch

from headway.kernels.cases import Case, Unit


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Per second; the best of what was tried."""

    copy_bytes: float
    """Read and written together."""
    read_bytes: float
    to_device_bytes: float
    to_host_bytes: float
    operations: dict[Unit, float]

    def seconds(self, case: Case) -> float:
        """The roofline of a launch under these ceilings."""
        counts = case.counts
        rate = self.operations.get(case.unit) or self.operations["float32"]
        return max(counts.bytes_moved / max(self.copy_bytes, self.read_bytes), counts.flops / rate)


def measure_ceilings(watch: Stopwatch, *, copy_bytes: int, side: int, repeats: int) -> Ceilings:
    """Copies of ``copy_bytes``, square products of ``side``."""
    device = watch.device
    source = torch.ones(copy_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    host = torch.empty(copy_bytes // 16, dtype=torch.float32, pin_memory=device.type == "cuda")
    near = target[: len(host)]

    def rate(amount: float, call: Callable[[], Any]) -> float:
        return amount / watch.time(call, repeats=repeats).seconds

    size = source.nbytes
    return Ceilings(
        copy_bytes=rate(2 * size, lambda: target.copy_(source)),
        read_bytes=rate(size, lambda: source.view(64, -1).sum(dim=-1)),
        to_device_bytes=rate(host.nbytes, lambda: near.copy_(host, non_blocking=True)),
        to_host_bytes=rate(host.nbytes, lambda: host.copy_(near, non_blocking=True)),
        operations=_rates(device, side, rate),
    )


def _rates(
    device: torch.device, side: int, rate: Callable[[float, Callable[[], Any]], float]
) -> dict[Unit, float]:
    operations = 2.0 * side**3
    left = torch.randn(side, side, device=device)
    right = torch.randn(side, side, device=device).T
    found: dict[Unit, float] = {"float32": rate(operations, lambda: left @ right)}
    wide = left.bfloat16(), right.bfloat16()
    found["bfloat16"] = rate(operations, lambda: wide[0] @ wide[1])
    small = left.to(torch.int8), right.to(torch.int8)
    eighths = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn)
    one = torch.ones((), device=device)
    tries: dict[Unit, Callable[[], Any]] = {
        "int8": lambda: torch._int_mm(*small),
        "fp8": lambda: torch._scaled_mm(*eighths, one, one, out_dtype=torch.bfloat16),
    }
    for unit, call in tries.items():
        try:
            found[unit] = rate(operations, call)
        except (RuntimeError, NotImplementedError):
            found[unit] = found["bfloat16"]  # this chip or build has none: such operands are widened
    return found
