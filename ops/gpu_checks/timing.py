"""How long a device takes for something, without the host's share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Timed:
    """Median seconds of one call."""

    seconds: float
    is_graph: bool
    """Replayed from a CUDA graph: launches cost the host nothing."""


class Stopwatch:
    """Times calls on one device; on a GPU by its events, with its cache emptied before each call."""

    def __init__(self, device: torch.device, *, flush_bytes: int) -> None:
        self.device = device
        self._flush = torch.empty(flush_bytes, dtype=torch.int8, device=device)

    def time(self, call: Callable[[], Any], *, repeats: int, graph: bool = True) -> Timed:
        """The median of ``repeats`` calls; ``graph``: as a CUDA graph where it can be."""
        if self.device.type != "cuda":
            return Timed(statistics.median(self._by_clock(call) for _ in range(repeats)), is_graph=False)
        call()  # what it compiles and allocates is not its time
        replay = capture(call) if graph else None
        run = call if replay is None else replay
        run()
        seconds = statistics.median(self._by_events(run) for _ in range(repeats))
        return Timed(seconds, is_graph=replay is not None)

    def _by_clock(self, call: Callable[[], Any]) -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    def _by_events(self, call: Callable[[], Any]) -> float:
        event: Any = torch.cuda.Event  # torch leaves it untyped
        began, ended = (event(enable_timing=True) for _ in range(2))
        # While this is written the host enqueues the call: its launches are not waited for.
        self._flush.zero_()
        began.record()
        call()
        ended.record()
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1e3


def capture(call: Callable[[], Any]) -> Callable[[], None] | None:
    """The call as a CUDA graph; None where it waits for the host or allocates what a graph may not."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph.replay
