"""Which cores a worker computes on, and which are left for its I/O."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

from headway.services.errors import UsageError


@dataclass(frozen=True, slots=True)
class Placement:
    """Threads that compute, and where; cores None: wherever the system puts them."""

    threads: int
    cores: tuple[int, ...] | None
    io_cores: frozenset[int] | None
    """Where everything else of the worker stays; None: anywhere."""

    def __str__(self) -> str:
        if self.cores is None:
            return f"{self.threads}, not pinned"
        beside = "" if self.io_cores is None else f"; I/O on {_listed(self.io_cores)}"
        return f"{self.threads}, pinned to cores {_listed(self.cores)}{beside}"


def place(threads: int | None, allowed: Collection[int], *, is_pinned: bool) -> Placement:
    """``threads`` None: as many as cores are allowed, which in a container are its own.

    Pinned threads take the last of the allowed cores: where there are more cores than threads, the first
    ones, at which interrupts usually arrive, are free for I/O. UsageError: more threads than cores.
    """
    count = threads or len(allowed)
    if not is_pinned:
        return Placement(count, None, None)
    if count > len(allowed):
        raise UsageError(
            f"{count} threads cannot be pinned to {len(allowed)} cores",
            hint=f"--threads {len(allowed)} or fewer, or without --pin-threads",
        )
    ordered = sorted(allowed)
    cores, left = tuple(ordered[-count:]), frozenset(ordered[:-count])
    # The engine's own thread computes too, as the first of them: it is not pinned, and stays where I/O does.
    return Placement(count, cores, left | {cores[0]} if left else None)


def stay(placement: Placement) -> None:
    """Keep the calling thread, and those that it starts from now on, on the cores for I/O."""
    if placement.io_cores is not None:
        os.sched_setaffinity(0, placement.io_cores)


def _listed(cores: Collection[int]) -> str:
    """``0-3, 8``."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
