"""Graphs for a device: CUDA's, and without a GPU something that launches again what was recorded."""

from __future__ import annotations

from collections.abc import Callable

import torch

from headway.engine.step_graphs import CudaGraphs, GraphMaker


class RerunGraphs:
    """A graph whose replay launches the same kernels with the same arguments, one by one."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work itself: what it launches is the same each time."""
        return work


def graphs_of(device: torch.device) -> GraphMaker:
    """The device's own where it has any."""
    return CudaGraphs(device) if device.type == "cuda" else RerunGraphs()
