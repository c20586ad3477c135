"""Each kernel's launches against their references, and their times against the roofline."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from gpu_checks.ceilings import Ceilings
from gpu_checks.timing import Stopwatch

from headway.kernels.cases import Case, cases, differences
from headway.kernels.launch import chip_of


@dataclass(frozen=True, slots=True)
class KernelCheck:
    """One launch."""

    kernel: str
    label: str
    problems: tuple[str, ...]
    seconds: float | None = None
    limit_seconds: float | None = None
    is_graph: bool = False

    @property
    def share(self) -> float | None:
        """Of the limit's speed."""
        return None if not self.seconds or self.limit_seconds is None else self.limit_seconds / self.seconds


def check_kernels(
    watch: Stopwatch, ceilings: Ceilings, *, is_tiny: bool, repeats: int
) -> Iterator[KernelCheck]:
    """All launches, one after another; one that raises is a problem of its own and stops nobody."""
    # Where there is a GPU the tiny ones come as well: their shapes are the odd ones.
    wanted = cases(tiny=True) if is_tiny else (*cases(tiny=True), *cases())
    for case in wanted:
        yield _check(case, watch, ceilings, repeats)


def _check(case: Case, watch: Stopwatch, ceilings: Ceilings, repeats: int) -> KernelCheck:
    try:
        trial = case.prepare(watch.device, chip_of(watch.device))
        problems = differences(case, trial.launch(), trial.reference())
        timed = watch.time(trial.launch, repeats=repeats)
    except Exception:  # whatever a kernel does, the others are still checked
        return KernelCheck(case.kernel, case.label, (traceback.format_exc(limit=-3),))
    finally:
        if watch.device.type == "cuda":
            torch.cuda.empty_cache()
    return KernelCheck(
        case.kernel, case.label, tuple(problems), timed.seconds, ceilings.seconds(case), timed.is_graph
    )
